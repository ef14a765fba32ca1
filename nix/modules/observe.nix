# What tells how it goes: the endpoint's metrics for Prometheus.
{ lib, config, ... }:
let
  inherit (lib) mkIf mkOption types;
  cfg = config.services.dsv41;
in
{
  options.services.dsv41.observe.prometheus = mkOption {
    type = types.bool;
    default = false;
    description = "Whether Prometheus on this host, if it is enabled, scrapes the head's /metrics.";
  };

  config = mkIf (cfg.enable && cfg.observe.prometheus) {
    services.prometheus.scrapeConfigs = [
      {
        job_name = "dsv41";
        static_configs = [ { targets = [ "${(lib.head cfg.nodes).address}:${toString cfg.apiPort}" ]; } ];
      }
    ];
  };
}
