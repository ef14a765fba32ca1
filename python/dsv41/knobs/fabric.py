"""Knobs of the fabric (NCCL) and of the container, the same for SGLang and vLLM."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41.knobs.rule import Rule, flag, number, text, words

FABRIC: Mapping[str, Rule] = {
    "nccl_build": words("stock", "sparkring"),
    "nccl_net": words("IB"),
    "nccl_net_plugin": words("none"),
    "nccl_ib_disable": flag(),
    "nccl_p2p_disable": flag(),
    "nccl_shm_disable": flag(),
    "nccl_cumem": flag(),
    "nccl_cross_nic": number(0, 2),
    "nccl_merge_nics": flag(),
    "nccl_subnet_aware": flag(),
    "nccl_subnet_prefix": number(8, 30),
    "nccl_buffer_bytes": number(4096),
    "nccl_ll128_bytes": number(4096),
    "nccl_proto": text(r"\^?(LL128|LL|Simple)(,(LL128|LL|Simple))*"),
    "nccl_algo": words("Ring"),
    "nccl_min_channels": number(1, 64),
    "nccl_max_channels": number(1, 64),
    "nccl_p2p_level": words("SYS"),
    "nccl_ring_only": flag(needs="nccl_ring"),
    "nccl_skip_tree": flag(needs="nccl_ring"),
    "nccl_extended_gids": flag(needs="nccl_dual_domain"),
    "nccl_preserve_pci_domain": flag(needs="nccl_dual_domain"),
    "nccl_route_diagnostics": flag(needs="nccl_dual_domain"),
    "nccl_qps_per_connection": number(1, 64),
    "nccl_ignore_affinity": flag(),
    "nccl_debug": words("WARN", "INFO"),
    "nccl_debug_subsys": text("[A-Z]+(,[A-Z]+)*"),
}

CONTAINER: Mapping[str, Rule] = {
    "shm_gib": number(1, 64),
    "privileged": flag(),
    "ipc_host": flag(),
    "oom_score_adj": number(-1000, 1000),
    "stack_bytes": number(8_388_608),
    "restart": words("no"),
}
