"""The predicting model: what a kernel would take on a V100-SXM2, from its machine code. `MODEL.md` explains it."""

from sm70_kernels.predict.launch import Buffer, Launch
from sm70_kernels.predict.prediction import Prediction, predict

__all__ = ["Buffer", "Launch", "Prediction", "predict"]
