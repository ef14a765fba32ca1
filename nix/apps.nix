# What `nix run` starts. An app only starts dsv41: what it does, and every flag of an engine, is
# dsv41's matter.
{ pkgs, packages }:
let
  inherit (pkgs) lib writeShellApplication;
  app = name: description: text: {
    type = "app";
    program = lib.getExe (writeShellApplication { inherit name text; });
    meta = { inherit description; };
  };
in
{
  # by the environment's own interpreter, which the ranks are started with in turn
  serve-local = app "serve-local" "Serve the tiny model on this machine's CPU" ''
    exec ${packages.local-env}/bin/python -m dsv41 serve --profile local "$@"
  '';

  # in a checkout, which it writes to: the narHash of inputs that have none yet
  pins-verify = app "pins-verify" "Fetch every pinned source and hash it again" ''
    exec ${lib.getExe packages.dsv41} pins verify "$@"
  '';

  # the one place that changes which base an image has
  pin-image = app "pin-image" "Fetch the manifests of base images into nix/images/bases" ''
    exec ${lib.getExe pkgs.python3} ${./images/tools}/pin_image.py "$@"
  '';

  default = app "dsv41-next" "Say which commands to run next" ''
    cat <<'EOF'
    nix run .#serve-local                                   serve the tiny model on port 8888
    nix run .#dsv41 -- smoke --url http://127.0.0.1:8888    check its answers
    nix run .#dsv41 -- stop --profile local                 stop it
    nix run .#dsv41 -- --help                               see all commands
    EOF
  '';
}
