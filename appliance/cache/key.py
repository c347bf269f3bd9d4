"""The key of a generation: everything that compiled code depends on, and nothing else. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from appliance.errors import CheckError
from appliance.rundir.plan import PlanRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PARTS = ("image", "vllm", "torch", "triton", "plugin", "kernels", "gpu", "driver_major", "model", "plan")
"""The names of a key's parts, in the order in which they are shown."""

NONE = "none"
"""A part of which there is nothing here, as a GPU's driver under the portable engine."""


@dataclass(frozen=True)
class Facts:
    """What the key is made of beside the plan; `appliance.cache.facts.gather` looks it up on this machine.

    `plugin` is version and source hash, `kernels` the hash of the kernel package with its build, `cpu` that of the
    processor's model and flags, `model` that of the checkpoint's configuration and of samples of its weights, `draft`
    that of the speculative draft; NONE where there is no such thing.
    """

    image: str
    vllm: str
    torch: str
    triton: str
    plugin: str
    kernels: str
    cpu: str
    model: str
    draft: str = NONE


# How it listens and logs, what it does with a finished token, and where files lie: no compiler sees these. An argument
# that is not named here changes the key, so that forgetting one costs a compilation and never a wrong graph.
_ARGUMENTS = frozenset(
    {
        *("host", "port", "uds", "api_key", "root_path", "middleware", "h11_max_header_count"),
        *("h11_max_incomplete_event_size", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_ciphers"),
        *("ssl_keyfile", "enable_ssl_refresh", "allow_credentials", "allowed_headers", "allowed_methods"),
        *("allowed_origins", "disable_fastapi_docs", "enable_offline_docs", "enable_request_id_headers"),
        *("enable_tokenizer_info_endpoint", "enable_server_load_tracking", "fail_on_environ_validation"),
        *("served_model_name", "model", "tokenizer", "download_dir", "hf_token", "response_role"),
        *("allowed_local_media_path", "allowed_media_domains", "shutdown_timeout", "tool_server"),
        *("disable_access_log_for_endpoints", "disable_uvicorn_access_log", "uvicorn_log_level", "log_config_file"),
        *("log_error_stack", "max_log_len", "enable_log_deltas", "enable_log_outputs", "enable_log_requests"),
        *("enable_logging_iteration_details", "aggregate_engine_logging", "disable_log_stats", "use_tqdm_on_load"),
        *("otlp_traces_endpoint", "collect_detailed_traces", "show_hidden_metrics_for_version"),
        *("kv_cache_metrics", "kv_cache_metrics_sample", "enable_mfu_metrics", "profiler_config", "cudagraph_metrics"),
        *("chat_template", "chat_template_content_format", "default_chat_template_kwargs"),
        *("trust_request_chat_template", "enable_auto_tool_choice", "exclude_tools_when_tool_choice_none"),
        *("tool_call_parser", "tool_parser_plugin", "reasoning_parser", "reasoning_parser_plugin"),
        *("enable_prompt_tokens_details", "enable_force_include_usage", "return_tokens_as_token_ids"),
        *("stream_interval", "renderer_num_workers", "override_generation_config", "generation_config"),
        "structured_outputs_config",
        *("master_addr", "master_port", "data_parallel_address", "data_parallel_rpc_port"),
    }
)

# What of the environment a compiler sees: these prefixes, but for what is told apart by name below.
_PREFIXES = ("VLLM_", "TORCH", "PYTORCH_", "TRITON_", "INDUCTOR_", "AOT_", "CUDA_", "NVCC_", "OMP_", "MKL_", "SM70_")
_OTHERS = frozenset({"CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CPATH", "APPLIANCE_VLLM_PLATFORM"})

_ENVIRONMENT = frozenset(
    {
        # Folders.
        *("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"),
        *("SM70_KERNELS_CACHE", "SM70_KERNELS_DIR", "TORCH_HOME", "VLLM_ASSETS_CACHE", "VLLM_RPC_BASE_PATH"),
        *("VLLM_XLA_CACHE_PATH", "VLLM_DEBUG_DUMP_PATH", "TRITON_HOME", "TRITON_DUMP_DIR", "TORCH_EXTENSIONS_DIR"),
        # Which of several equal GPUs; how many and of what kind are parts of their own.
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
        # The network, secrets, logs and statistics.
        *("VLLM_API_KEY", "VLLM_HOST_IP", "VLLM_LOOPBACK_IP", "VLLM_PORT", "VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT"),
        *("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_USAGE_SOURCE", "VLLM_USAGE_STATS_SERVER"),
        *("VLLM_CONFIGURE_LOGGING", "VLLM_DISABLE_LOG_LOGO", "VLLM_LOG_STATS_INTERVAL", "VLLM_LOG_BATCHSIZE_INTERVAL"),
        *("VLLM_LOG_MODEL_INSPECTION", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "VLLM_PROCESS_NAME_PREFIX"),
        *("VLLM_RINGBUFFER_WARNING_INTERVAL", "VLLM_ENGINE_ITERATION_TIMEOUT_S", "VLLM_ENGINE_READY_TIMEOUT_S"),
        *("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "VLLM_RPC_TIMEOUT"),
        *("VLLM_IMAGE_FETCH_TIMEOUT", "VLLM_VIDEO_FETCH_TIMEOUT", "VLLM_AUDIO_FETCH_TIMEOUT"),
        *(
            "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS",
            "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",
            "VLLM_SM70_REQUIRE_PROFILE_ACCELERATION",
        ),
        # Whether there is a cache at all is decided before a key is needed.
        "VLLM_DISABLE_COMPILE_CACHE",
    }
)
_ENVIRONMENT_PREFIXES = ("VLLM_LOGGING_", "TORCH_LOGS", "TORCH_CPP_LOG", "TORCH_SHOW_CPP", "TORCH_NCCL_")

_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


def parts_of(plan: PlanRecord, facts: Facts, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the parts by the names of PARTS; `environ` is what the engine inherits.

    The environment that the plan adds wins over `environ`, as it does in the engine. Raises CheckError for a plan that
    lacks what the key is made of.
    """
    gpus = plan.planned_gpus
    driver = (plan.machine or {}).get("driver") if gpus else None
    return {
        "image": facts.image,
        "vllm": facts.vllm,
        "torch": facts.torch,
        "triton": facts.triton,
        "plugin": facts.plugin,
        "kernels": facts.kernels,
        "gpu": ", ".join(dict.fromkeys(map(_gpu, gpus))) if gpus else f"cpu {facts.cpu}",
        "driver_major": str(driver).partition(".")[0] if driver else NONE,
        "model": facts.model if facts.draft == NONE else f"{facts.model} draft {facts.draft}",
        "plan": plan_hash(plan, environ),
    }


def key_of(parts: Mapping[str, str]) -> str:
    """Return the key: the first 32 hexadecimal digits of the SHA-256 over the sorted parts."""
    return digest(dict(parts))


def plan_hash(plan: PlanRecord, environ: Mapping[str, str]) -> str:
    """Return the hash of the arguments and variables that compiled code may depend on."""
    return digest(list(relevant(plan, environ)))


def relevant(plan: PlanRecord, environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield what goes into the plan's hash, by name: vLLM's arguments, then variables as `$NAME`.

    Raises CheckError for a plan that lacks any of it: a key of less would fit code that was compiled for other plans.
    """
    needed = ("engine", "arguments", "environment", "gpus", "machine")
    if absent := [name for name in needed if getattr(plan, name) is None]:
        raise CheckError(f"{PlanRecord.FILE} has no readable {', '.join(absent)}; `appliance serve` writes it anew")
    yield "engine", plan.engine
    for name, sourced in sorted((plan.arguments or {}).items()):
        if name in _ARGUMENTS:
            continue
        value = sourced.value
        if name == "speculative_config" and isinstance(value, dict):
            # Where the draft lies says nothing; what it is has a part of its own.
            value = {key: inner for key, inner in value.items() if key != "model"}
        yield name, value
    added = {name: sourced.value for name, sourced in (plan.environment or {}).items()}
    for name, value in sorted({**environ, **added}.items()):
        if _compiler_sees(name):
            yield f"${name}", value


def _compiler_sees(name: str) -> bool:
    if name in _OTHERS:
        return True
    if not name.startswith(_PREFIXES) or name.startswith(_ENVIRONMENT_PREFIXES) or name in _ENVIRONMENT:
        return False
    return not any(word in name for word in _SECRET)


def _gpu(gpu: Mapping[str, Any]) -> str:
    capability = gpu.get("capability")
    return f"{gpu['name']} sm_{''.join(map(str, capability))}" if capability else str(gpu["name"])


def digest(value: object) -> str:
    """Return the first 32 hexadecimal digits of the SHA-256 over `value` as JSON with sorted keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]
