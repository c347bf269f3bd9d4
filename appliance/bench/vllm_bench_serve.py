"""vLLM's own `vllm bench serve`, as a module: `python -m appliance.bench.vllm_bench_serve OPTIONS`.

vLLM's command line asks for the metadata of a package called vllm, which its build for CPUs does not have.
"""

from __future__ import annotations

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    main(parser.parse_args())
