# What is served, and where the fleet's nodes agree.
{
  lib,
  pkgs,
  config,
  ...
}:
let
  inherit (lib) literalExpression mkEnableOption mkOption types;
  opt = type: default: description: mkOption { inherit type default description; };
in
{
  options.services.dsv41 = {
    enable = mkEnableOption "a rank of DeepSeek-V4.1-Flash on this host";

    package = mkOption {
      type = types.package;
      default = pkgs.callPackage ../packages/dsv41.nix {
        row-store = pkgs.callPackage ../packages/row-store.nix { };
      };
      defaultText = literalExpression "dsv41, built with the host's nixpkgs";
      description = "The operator command, which makes the Plan and starts the rank.";
    };

    profile = mkOption {
      type = types.either (types.enum [ "tp3" "tp4" "tp4-ring" "tp4-cycle" ]) types.path;
      example = "tp3";
      description = ''
        What is served: the name of a shipped profile, or a file in the form of one. `dsv41 plan --profile NAME --why`
        tells every value and its reason.
      '';
    };

    knobs = mkOption {
      type = types.attrsOf (types.oneOf [ types.bool types.int types.float types.str ]);
      default = { };
      example = { context = 131072; };
      description = "Other values for knobs of the profile, as `dsv41 plan --set` takes them.";
    };

    topology = mkOption {
      type = types.enum [ "triangle" "switch" "ring" ];
      example = "triangle";
      description = "How the cables run: three nodes each to each, all to a switch, or a ring of four.";
    };

    node = mkOption {
      type = types.str;
      default = config.networking.hostName;
      defaultText = literalExpression "config.networking.hostName";
      example = "spark1";
      description = "Which of `nodes` this host is.";
    };

    apiHost = opt types.str "0.0.0.0" "Address that the endpoint listens on, on the head.";
    apiPort = opt types.port 8888 "Port of the OpenAI-compatible endpoint, on the head.";
    masterPort = opt types.port 20000 "Port of the head where the ranks meet.";
    controlPort = opt types.port 20001 "Port of every node for dsv41 itself.";

    controlKeyFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "/run/secrets/dsv41-control";
      description = ''
        File of 32 random bytes in hex, the same on every node, with which ranks prove to each other who they are. It reaches
        the rank as a systemd credential. Without it the rank reads run/control.key below the state folder, of mode 0600.
      '';
    };

    apiKeyFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "/run/secrets/dsv41-api-keys";
      description = ''
        File on the head with one API key a line. It reaches the rank as a systemd credential; no key enters the store,
        the Plan, an argument or the environment. Without it the endpoint asks for no key.
      '';
    };

    stateDir = opt types.str "/var/lib/dsv41" "Folder of this host's state.";
    cacheDir = opt types.str "/var/cache/dsv41" "Folder of compiled kernels, one below it an image.";

    spsTable = opt (types.nullOr types.str) null "DSpark's table of steps per second, if measured.";
    stsTable = opt (types.nullOr types.str) null "DSpark's table of confidence scales, if measured.";

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether the head's firewall lets clients reach `apiPort` on every interface.";
    };
  };
}
