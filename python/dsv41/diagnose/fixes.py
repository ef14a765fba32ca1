"""Commands that mend, where more than one finding needs them."""

from __future__ import annotations

KHO_OFF = (
    "echo 'GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT kho=off\"' | "
    "sudo tee /etc/default/grub.d/kho.cfg && sudo update-grub && sudo reboot"
    ' (NixOS: boot.kernelParams = [ "kho=off" ];)'
)
DROP_CACHES = "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
POWER_CYCLE = (
    "sudo poweroff, take the power adapter off for 60 s, start again; "
    "restarting the service alone changes nothing"
)
PCIE_CYCLE = (
    "end the engine, then sudo poweroff and take the power adapter off for 60 s; leave AER and "
    "ASPM on; "
    "open a support case when it comes again"
)
GIDS = (
    "leave gid_index out of the fleet file; "
    "dsv41 doctor --profile PROFILE --fleet FLEET names the GIDs of every HCA"
)
NCCL_INFO = (
    "serve once with NCCL_DEBUG=INFO on all ranks and diagnose the log of the rank that ended first"
)
LEDGER = "dsv41 plan --profile PROFILE --fleet FLEET --why"
ALL_AGAIN = "end the engine on all nodes, then start all ranks again, together"
