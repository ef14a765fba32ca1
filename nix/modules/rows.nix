# This node's Engram rows, packed from the checkpoint onto its own NVMe: once, for a complete file is left as it is.
{ lib, config, ... }:
let
  cfg = config.services.dsv41;
in
{
  options.services.dsv41.rows.pack = lib.mkOption {
    type = lib.types.bool;
    default = true;
    description = "Whether the rows are packed before the rank's first start; else that is your affair.";
  };

  config = lib.mkIf (cfg.enable && cfg.rows.pack) {
    systemd.services.dsv41-rows = {
      description = "dsv41: Engram rows of rank ${toString cfg.rank} are packed";
      unitConfig = cfg.onMounts;
      requiredBy = [ "dsv41-rank.service" ];
      before = [ "dsv41-rank.service" ];
      serviceConfig = {
        Type = "oneshot";
        RemainAfterExit = true;
        ExecStart = "${lib.getExe cfg.package} pack --plan ${cfg.plan} --rank ${toString cfg.rank}";
        # a unit that the rank requires must not fail for once: the rank's own start would fail with it, and nobody would
        # try again. "direct" (systemd 254) tries again without having failed
        Restart = "on-failure";
        RestartMode = "direct";
        RestartSec = 30;
        # 2: wrong usage, 5: refused as unsafe; the next start would end the same way
        RestartPreventExitStatus = "2 5";
        TimeoutStartSec = "1h";
      };
    };
  };
}
