# The Plan, made in the store by the same command that a person would type, so that a configuration that cannot work fails
# the build with that command's own message.
{
  lib,
  pkgs,
  config,
  ...
}:
let
  inherit (lib) filterAttrs imap0 mkIf mkOption optionals types;
  cfg = config.services.dsv41;

  # JSON of a string, a number, a boolean or a list of strings is TOML as well
  line = name: value: "${name} = ${builtins.toJSON value}\n";
  table = values: lib.concatStrings (lib.mapAttrsToList line (filterAttrs (_: v: v != null) values));

  ofNode = node: {
    inherit (node) name address hca fabric;
    ssh = if node.ssh == null then node.name else node.ssh;
    socket_ifname = node.socketIfname;
    model_dir = node.modelDir;
    rows_dir = node.rowsDir;
    gid_index = node.gidIndex;
    nccl_library = node.ncclLibrary;
    memory_gib = node.memoryGib;
    reserve_gib = node.reserveGib;
  };
  ofFleet = {
    inherit (cfg) topology;
    container = "podman";
    api_host = cfg.apiHost;
    api_port = cfg.apiPort;
    master_port = cfg.masterPort;
    control_port = cfg.controlPort;
    state_dir = cfg.stateDir;
    cache_dir = cfg.cacheDir;
    # systemd puts it there for the unit; the file itself is named in rank.nix alone
    api_key_file = if cfg.apiKeyFile == null then null else "/run/credentials/dsv41-rank.service/api-keys";
    nfs_server = cfg.weights.nfs.server;
    sps_table = cfg.spsTable;
    sts_table = cfg.stsTable;
  };
  fleet = pkgs.writeText "fleet.toml" (
    table ofFleet + lib.concatMapStrings (node: "\n[[nodes]]\n${table (ofNode node)}") cfg.nodes
  );

  # true and false as TOML writes them, for --set
  word = value: if builtins.isString value then value else builtins.toJSON value;
  arguments = [ "--profile" "${cfg.profile}" "--fleet" "${fleet}" ]
    ++ lib.concatLists (lib.mapAttrsToList (name: value: [ "--set" "${name}=${word value}" ]) cfg.knobs)
    ++ optionals (cfg.image.reference != null) [ "--image" cfg.image.reference ];
  planCommand = "${lib.getExe cfg.package} plan ${lib.escapeShellArgs arguments}";
  plan = pkgs.runCommand "dsv41-plan.json" { } ''
    ${planCommand} --json > "$out"
    # a rank without an image could only refuse to start
    if grep -q '"image":null' "$out"; then
      echo "services.dsv41: no image is pinned for profile ${baseNameOf "${cfg.profile}"}." >&2
      echo "  fix: nix build .#image-PROFILE, then set services.dsv41.image.reference to its name@sha256:..." >&2
      exit 1
    fi
  '';

  remote = cfg.weights.nfs.server != null && cfg.self.name != cfg.weights.nfs.serverNode;
  ranks = lib.listToAttrs (imap0 (rank: node: lib.nameValuePair node.name rank) cfg.nodes);
  internal = type: mkOption {
    inherit type;
    internal = true;
    readOnly = true;
    description = "Computed.";
  };
in
{
  options.services.dsv41 = {
    plan = mkOption {
      type = types.package;
      readOnly = true;
      description = "The Plan as a file in the store; the same on every node.";
    };
    rank = internal (types.nullOr types.int);
    self = internal types.raw;
    planCommand = internal types.str;
    fleetFile = internal types.package;
    onMounts = internal types.raw;
  };

  config.services.dsv41 = mkIf cfg.enable {
    inherit plan planCommand;
    fleetFile = fleet;
    # for the units that read checkpoint and rows. RequiresMountsFor= would fail them for good when the server of the
    # checkpoint is not up yet; WantsMountsFor= (systemd 256; NixOS has a newer one) waits for the attempt alone
    onMounts =
      if remote then
        { RequiresMountsFor = [ cfg.self.rowsDir ]; WantsMountsFor = [ cfg.self.modelDir ]; }
      else
        { RequiresMountsFor = [ cfg.self.modelDir cfg.self.rowsDir ]; };
    rank = ranks.${cfg.node} or null;
    # asserts.nix says what is wrong when there is no such node; this keeps evaluation alive until then
    self = if cfg.rank == null then lib.head cfg.nodes else builtins.elemAt cfg.nodes cfg.rank;
  };
}
