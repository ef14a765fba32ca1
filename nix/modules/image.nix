# The engine's image, loaded by digest when it is absent and never at another start: copying 10 GB takes minutes. It is not
# part of the system, or every generation would hold it.
{
  lib,
  pkgs,
  config,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.dsv41;
  digest = (lib.importJSON ../images/digests.json).images.${toString cfg.profile} or null;
  pinned = if digest == null then null else "localhost/dsv41/${cfg.profile}@${digest}";
  podman = lib.getExe pkgs.podman;
  skopeo = lib.getExe pkgs.skopeo;
  # podman knows a copied image by name and digest
  copied = lib.head (lib.splitString "@" cfg.image.reference);
  load =
    if cfg.image.source == null then
      ''
        echo "dsv41: image ${cfg.image.reference} is not on this host, and services.dsv41.image.source names no place" >&2
        echo "dsv41: to load it from. Build it with nix build .#image-PROFILE and copy it: skopeo copy --preserve-digests" >&2
        exit 1
      ''
    else
      ''
        ${skopeo} copy --preserve-digests ${lib.escapeShellArg cfg.image.source} \
          containers-storage:${lib.escapeShellArg copied}
        ${podman} image exists ${lib.escapeShellArg cfg.image.reference} || {
          echo "dsv41: ${cfg.image.source} holds another image than ${cfg.image.reference}" >&2
          exit 1
        }
      '';
in
{
  options.services.dsv41.image = {
    reference = mkOption {
      type = types.nullOr types.str;
      default = pinned;
      defaultText = lib.literalExpression "the image that this version of dsv41 has pinned for the profile, or null";
      example = "localhost/dsv41/tp3@sha256:0000000000000000000000000000000000000000000000000000000000000000";
      description = "Image of the engine with its digest. Without one the Plan is refused.";
    };
    source = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "oci:/var/lib/dsv41/image";
      description = ''
        Where to load the image from when it is absent, in the words of skopeo: `oci:/folder` (what
        `skopeo copy --preserve-digests oci:result oci:/folder` made of the result of `nix build .#image-tp3`, whose own
        files are links into the store), `docker://registry/name@sha256:...`. Null loads nothing: the unit then only checks.
      '';
    };
  };

  config = lib.mkIf (cfg.enable && cfg.image.reference != null) {
    systemd.services.dsv41-image = {
      description = "dsv41: the engine's image is on this host";
      after = lib.optional (lib.hasPrefix "docker://" (toString cfg.image.source)) "network-online.target";
      wants = lib.optional (lib.hasPrefix "docker://" (toString cfg.image.source)) "network-online.target";
      requiredBy = [ "dsv41-rank.service" ];
      before = [ "dsv41-rank.service" ];
      script = ''
        ${podman} image exists ${lib.escapeShellArg cfg.image.reference} && exit 0
        ${load}
      '';
      serviceConfig = {
        Type = "oneshot";
        RemainAfterExit = true;
        # as for the rows: a registry that does not answer once, or an image that is copied a minute later
        Restart = "on-failure";
        RestartMode = "direct";
        RestartSec = 30;
        TimeoutStartSec = "2h";
      };
    };
  };
}
