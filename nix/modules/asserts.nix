# What the option types cannot say. Whether the fleet fits and its cables agree is the Plan's affair.
{
  lib,
  config,
  ...
}:
let
  cfg = config.services.dsv41;
  inherit (cfg) self;
  names = lib.concatMapStringsSep ", " (node: node.name) cfg.nodes;
  inStore = text: text != null && lib.hasInfix "/nix/store/" "${text}";
  claim = assertion: message: { inherit assertion; message = "services.dsv41: ${message}"; };
in
{
  config = lib.mkIf cfg.enable {
    assertions = [
      (claim (cfg.rank != null)
        "this host is ${cfg.node}, and the nodes are ${names}. Set services.dsv41.node to one of them, or networking.hostName."
      )
      (claim (!cfg.fabric.enable || builtins.length self.fabricInterfaces == builtins.length self.fabric)
        "node ${self.name} has ${toString (builtins.length self.fabric)} fabric addresses and ${toString (builtins.length self.fabricInterfaces)} fabricInterfaces. Name the interface of every hca, or set services.dsv41.fabric.enable = false and set the addresses yourself."
      )
      (claim config.virtualisation.podman.enable
        "the rank runs in podman, which something else turns off. Remove virtualisation.podman.enable = false."
      )
      (claim config.hardware.nvidia-container-toolkit.enable
        "the container gets its GPU by CDI from the NVIDIA container toolkit, which something else turns off. Remove hardware.nvidia-container-toolkit.enable = false."
      )
      (claim (!inStore cfg.apiKeyFile)
        "apiKeyFile is in the store, which everybody on the host can read. Give the path of a file as a string, for example of sops-nix or agenix."
      )
      (claim (!inStore cfg.controlKeyFile)
        "controlKeyFile is in the store, which everybody on the host can read. Give the path of a file as a string, for example of sops-nix or agenix."
      )
      (claim (!inStore cfg.image.source)
        "image.source is in the store, so every system generation would hold about 10 GB. Give a registry (docker://...), or a folder outside of the store (oci:/var/lib/dsv41/image)."
      )
      (claim (cfg.image.reference == null || lib.hasInfix "@sha256:" cfg.image.reference)
        "image.reference is ${toString cfg.image.reference}, which has no digest. Give name@sha256:..., so that all nodes run the same bytes."
      )
      (claim (cfg.weights.nfs.server == null || cfg.weights.nfs.serverNode != null)
        "weights.nfs.server is ${toString cfg.weights.nfs.server}, and weights.nfs.serverNode is not set. Name the node that exports the checkpoint."
      )
      (claim (cfg.weights.nfs.server == null || cfg.weights.nfs.clients != [ ])
        "weights.nfs.clients is empty, and an export without clients is open to everybody. Name the nodes' addresses or their network, as [ \"10.0.0.0/24\" ]."
      )
      (claim (cfg.weights.nfs.serverNode == null || lib.any (n: n.name == cfg.weights.nfs.serverNode) cfg.nodes)
        "weights.nfs.serverNode is ${toString cfg.weights.nfs.serverNode}, and the nodes are ${names}. Name one of them."
      )
    ];

    warnings =
      lib.optional (cfg.apiKeyFile == null && cfg.apiHost != "127.0.0.1")
        "services.dsv41: the endpoint on ${cfg.apiHost}:${toString cfg.apiPort} asks for no API key. Set apiKeyFile, or apiHost = \"127.0.0.1\".";
  };
}
