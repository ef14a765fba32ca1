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
  dsv41 = lib.getExe packages.dsv41;
  # engines are in their images, so the operator command alone starts a fleet; it refers to an image by digest, and none
  # is in its closure
  serve = profile: {
    name = "serve-${profile}";
    value = app "serve-${profile}" "Serve profile ${profile} on the nodes of a fleet file" ''
      exec ${dsv41} serve --profile ${profile} "$@"
    '';
  };
  verb = name: says: {
    inherit name;
    value = app name says ''
      exec ${dsv41} ${name} "$@"
    '';
  };
in
lib.listToAttrs (
  map serve [
    "tp3"
    "tp4"
    "tp4-ring"
    "tp4-cycle"
  ]
  ++ [
    (verb "doctor" "Judge every node of a fleet")
    (verb "plan" "Say what would run and if it fits")
    (verb "pack" "Pack a rank's Engram rows")
    (verb "smoke" "Ask the endpoint questions with known answers")
    (verb "stop" "Stop the service")
    (verb "status" "Say how each rank is")
    (verb "logs" "Print the logs of the ranks")
  ]
)
// {
  # by the environment's own interpreter, which the ranks are started with in turn
  serve-local = app "serve-local" "Serve the tiny model on this machine's CPU" ''
    exec ${packages.local-env}/bin/python -m dsv41 serve --profile local "$@"
  '';

  # in a checkout, which it writes to: the narHash of inputs that have none yet
  pins-verify = app "pins-verify" "Fetch every pinned source and hash it again" ''
    exec ${dsv41} pins verify "$@"
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
