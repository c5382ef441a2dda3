"""Bodies of the information endpoints, field by field as captured from 0.5.23."""

from __future__ import annotations

import datetime
import time
from typing import Any

from sglang.standin.plan import Plan


def model_info(plan: Plan) -> dict[str, Any]:
    return {
        "model_path": plan["model_path"],
        "served_model_name": plan["served_model_name"],
        "tokenizer_path": plan["tokenizer_path"],
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": plan["weight_version"],
        "load_format": plan["load_format"],
        "reasoning_parser": plan["reasoning_parser"],
        "tool_call_parser": plan["tool_call_parser"],
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": plan.model_type,
        "architectures": [plan.architecture],
    }


def models(plan: Plan, started: float) -> dict[str, Any]:
    card = {
        "id": plan["served_model_name"],
        "object": "model",
        "created": int(started),
        "owned_by": "sglang",
        "root": plan["served_model_name"],
        "parent": None,
        "max_model_len": plan.context_length,
    }
    return {"object": "list", "data": [card]}


def server_info(plan: Plan, loaded: dict[str, Any], status: str, state: dict[str, Any]) -> dict[str, Any]:
    timings = loaded["timings"]
    internal = {
        **plan.arguments,
        "effective_max_running_requests_per_dp": plan["max_running_requests"],
        **state,
        "memory_usage": {"weight": 52.7, "kvcache": 0.0, "token_capacity": loaded["max_total_num_tokens"], "graph": {"decode": 0.5}},
    }
    return {
        **plan.arguments,
        "launch_command": plan.launch_command,
        "status": status,
        "max_total_num_tokens": loaded["max_total_num_tokens"],
        "max_req_input_len": plan.context_length - 6,
        "startup_time": {
            "load_weight": timings["weights"],
            "kv_cache_allocation": timings["kv_cache"],
            "scheduler_e2e": sum(timings.values()),
            "cuda_graph": {"prefill": 0.0, "decode": timings["graph_capture"]},
        },
        "kv_events": None,
        "internal_states": [internal],
        "version": plan.version,
    }


def loads(plan: Plan, loaded: dict[str, Any], open_requests: int, used_tokens: int) -> dict[str, Any]:
    running = min(open_requests, int(plan["max_running_requests"]))
    capacity = loaded["max_total_num_tokens"]
    load = {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": open_requests - running,
        "num_used_tokens": used_tokens,
        "num_total_tokens": used_tokens,
        "max_total_num_tokens": capacity,
        "max_running_requests": plan["max_running_requests"],
        "token_usage": round(used_tokens / max(1, capacity), 4),
        "gen_throughput": 0.0,
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
    }
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()  # noqa: UP017 - Python 3.9 has no datetime.UTC
    return {"timestamp": now, "version": plan.version, "accelerator": None, "num_accelerators": plan.ranks, "loads": [load]}


def metrics(plan: Plan, loaded: dict[str, Any], open_requests: int, generated: int) -> str:
    label = f'{{engine_type="unified",model_name="{plan["served_model_name"]}"}}'
    values = {
        "num_running_reqs": ("gauge", open_requests),
        "num_queue_reqs": ("gauge", 0),
        "max_total_num_tokens": ("gauge", loaded["max_total_num_tokens"]),
        "generation_tokens_total": ("counter", generated),
    }
    lines: list[str] = []
    for name, (kind, value) in values.items():
        lines += [f"# HELP sglang:{name} {name}", f"# TYPE sglang:{name} {kind}", f"sglang:{name}{label} {float(value)}"]
    return "\n".join(lines) + "\n"
