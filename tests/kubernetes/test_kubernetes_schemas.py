"""Every object against the API's own schemas, misspelt keys included."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor
from kubernetes_validate import utils
from pydantic import ValidationError

from tests.kubernetes.kubernetes_manifests import FILLER, OVERLAYS, Object, objects, one

if TYPE_CHECKING:
    from collections.abc import Callable

OLDEST = (1, 30)  # the first with native sidecars and the sleep action on by default
VERSIONS = [v for v in sorted(set(utils.all_versions())) if tuple(map(int, v.split(".")[:2])) >= OLDEST]


def check(each: Object, version: str) -> None:
    if each["kind"] != "ServiceMonitor":
        kubernetes_validate.validate(each, version, strict=True)
        return
    # The model ignores keys that it does not know; what it gives back then lacks them.
    known = ServiceMonitor.model_validate(copy.deepcopy(each))
    assert known.model_dump(mode="json", by_alias=True, exclude_unset=True) == each


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid(overlay: str, version: str) -> None:
    for each in objects(overlay):
        check(each, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_filler_is_valid(version: str) -> None:
    check(yaml.safe_load(FILLER.read_text(encoding="utf-8")), version)


def _misspelt_probe(spec: Any) -> None:
    spec["template"]["spec"]["containers"][0]["startupProb"] = {}


def _wrong_kind(spec: Any) -> None:
    spec["template"]["spec"]["terminationGracePeriodSeconds"] = "3 minutes"


@pytest.mark.parametrize("spoil", [_misspelt_probe, _wrong_kind])
def test_the_schemas_refuse_what_is_wrong(spoil: Callable[[Any], None]) -> None:
    spoilt = copy.deepcopy(one("16gb", "StatefulSet"))
    spoil(spoilt["spec"])
    with pytest.raises(kubernetes_validate.ValidationError):
        check(spoilt, VERSIONS[-1])


def test_the_monitors_schema_refuses_what_is_wrong() -> None:
    misspelt, wrong = (copy.deepcopy(one("16gb", "ServiceMonitor")) for _ in range(2))
    misspelt["spec"]["endpoints"][0]["prot"] = "health"
    with pytest.raises(AssertionError):
        check(misspelt, VERSIONS[-1])
    wrong["spec"]["endpoints"][0]["interval"] = "often"
    with pytest.raises(ValidationError):
        check(wrong, VERSIONS[-1])


def test_the_oldest_supported_version_is_among_those_tried() -> None:
    assert any(version.startswith("1.30") for version in VERSIONS)
    assert len(VERSIONS) > 5
