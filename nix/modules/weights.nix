# The checkpoint: on every node's own disk, or exported by one node over NFS, with the options of the three-Spark recipe.
{ lib, config, ... }:
let
  inherit (lib) mkOption types;
  cfg = config.services.dsv41;
  inherit (cfg.weights) nfs;
  isServer = cfg.self.name == nfs.serverNode;
  clients = lib.concatMapStringsSep " " (
    network: "${network}(ro,sync,no_subtree_check,no_root_squash,insecure,fsid=0)"
  ) nfs.clients;
in
{
  options.services.dsv41.weights.nfs = {
    server = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "10.0.0.1";
      description = ''
        Address of the node that exports the checkpoint, one that every node reaches; null: every node has its own copy.
      '';
    };
    serverNode = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "spark1";
      description = "Name of the node that exports the checkpoint.";
    };
    clients = mkOption {
      type = types.listOf types.str;
      default = [ ];
      example = [ "10.0.0.0/24" ];
      description = "Hosts or networks that may mount it, as exports(5) has them.";
    };
  };

  config = lib.mkIf (cfg.enable && nfs.server != null) (
    lib.mkMerge [
      (lib.mkIf isServer {
        services.nfs.server = {
          enable = true;
          exports = "${cfg.self.modelDir} ${clients}";
        };
        networking.firewall.interfaces = lib.genAttrs (
          cfg.self.fabricInterfaces ++ [ cfg.self.socketIfname ]
        ) (_: { allowedTCPPorts = [ 2049 ]; });
      })
      (lib.mkIf (!isServer) {
        fileSystems.${cfg.self.modelDir} = {
          # fsid=0 makes the exported folder the root of the server's NFSv4 tree
          device = "${nfs.server}:/";
          fsType = "nfs4";
          options = [
            "ro"
            "nfsvers=4.2"
            "nconnect=8"
            "rsize=1048576"
            "wsize=1048576"
            "hard"
            "timeo=600"
            "_netdev"
            "x-systemd.automount"
            # a node that boots before the server must not stop there. Nor may its units: they want this mount and do
            # not require it (onMounts in plan.nix), fail while it is away, and are started again
            "nofail"
          ];
        };
      })
    ]
  );
}
