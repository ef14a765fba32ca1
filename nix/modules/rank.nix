# The rank: `dsv41 rank exec` in the foreground, restarted unless restarting cannot help.
{ lib, config, ... }:
let
  inherit (lib)
    mkDefault
    mkIf
    optional
    optionalString
    ;
  cfg = config.services.dsv41;
  head = cfg.rank == 0;
  control = cfg.controlKeyFile != null;
in
{
  config = mkIf cfg.enable {
    virtualisation.podman.enable = mkDefault true;
    hardware.nvidia-container-toolkit.enable = mkDefault true;
    environment.systemPackages = [ cfg.package ];
    environment.etc."dsv41/fleet.toml".source = cfg.fleetFile;
    systemd.tmpfiles.rules = [
      "d ${cfg.stateDir} 0750 root root -"
      "d ${cfg.cacheDir} 0750 root root -"
      "d ${cfg.self.rowsDir} 0750 root root -"
    ];
    networking.firewall.allowedTCPPorts = optional (head && cfg.openFirewall) cfg.apiPort;

    systemd.services.dsv41-rank = {
      description = "dsv41: rank ${toString cfg.rank} of ${toString (builtins.length cfg.nodes)}, profile ${baseNameOf "${cfg.profile}"}";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [ "network-online.target" "nvidia-container-toolkit-cdi-generator.service" ];
      unitConfig = cfg.onMounts // {
        # ranks wait for each other for as long as it takes
        StartLimitIntervalSec = 0;
      };
      # podman is found as on a shell of the host
      path = [ "/run/current-system/sw" ];
      serviceConfig = {
        Type = "exec";
        ExecStart = "${lib.getExe cfg.package} rank exec --plan ${cfg.plan} --rank ${toString cfg.rank}${optionalString control " --control-key %d/control-key"}";
        LoadCredential =
          optional (head && cfg.apiKeyFile != null) "api-keys:${cfg.apiKeyFile}"
          ++ optional control "control-key:${cfg.controlKeyFile}";
        Restart = "on-failure";
        RestartSec = 30;
        # 2: wrong usage, 5: refused as unsafe; the next start would end the same way
        RestartPreventExitStatus = "2 5";
        TimeoutStartSec = "45min";
        TimeoutStopSec = 60;
        # limits of PAM do not reach a service
        LimitMEMLOCK = "infinity";
        OOMScoreAdjust = 500;
        ManagedOOMMemoryPressure = "auto";
        KillMode = "mixed";
      };
    };
  };
}
