# What the stub of poetry2nix must refuse, so that a green build says something: name -> refused?
# `accepted` is the flake's own call on the committed lock, `acceptedMore` one on a longer lock.
let
  lib = import ./hostpkgs/lib.nix;
  pkgs = import ./hostpkgs {
    inherit lib;
    system = builtins.currentSystem;
  };
  poetry2nix = import ./stub/poetry2nix { inherit pkgs; };

  # the call that nix/packages/local-env.nix makes, kept instead of carried out
  call = import ../../nix/packages/local-env.nix {
    inherit (pkgs) lib python3 writeTextDir;
    poetry2nix.mkPoetryEnv = args: args;
    dsv41 = "/dsv41";
    row-store = "/row-store";
  };
  refused = args: !(builtins.tryEval (poetry2nix.mkPoetryEnv (call // args)).outPath).success;

  file = name: text: builtins.toFile name text;
  pyproject = builtins.readFile call.pyproject;
  lock = builtins.readFile call.poetrylock;
  edited =
    text: from: to:
    assert lib.hasInfix from text;
    builtins.replaceStrings [ from ] [ to ] text;
  editedLock = from: to: { poetrylock = file "poetry.lock" (edited lock from to); };
  package = name: extra: ''
    [[package]]
    name = "${name}"
    version = "1.0"
    groups = ["local"]
    files = [{file = "${name}-1.0-py3-none-any.whl", hash = "sha256:0"}]
    ${extra}
  '';
  added = name: extra: {
    poetrylock = file "poetry.lock" (package name extra + lock);
  };
in
{
  accepted = !refused { };
  acceptedMore = !refused (added "other" "");
  staleLock = refused {
    pyproject = file "pyproject.toml" (edited pyproject ''rich = ">=14"'' ''rich = ">=15"'');
  };
  noPoetryName = refused {
    pyproject = file "pyproject.toml" (
      edited pyproject "[tool.poetry]\nname = \"dsv41\"\n" "[tool.poetry]\n"
    );
  };
  missingPackage = refused (editedLock ''name = "tokenizers"'' ''name = "tokenizer"'');
  oldLockFormat = refused (editedLock ''lock-version = "2.'' ''lock-version = "1.'');
  torchLocked = refused (added "torch" "");
  lockedTwice = refused (added "numpy" "");
  lockedFromUrl = refused (added "other" ''source = {type = "legacy", url = "index"}'');
  noFittingWheel = refused (editedLock "-cp3" "-pp3");
  youngTags = refused { poetrylock = ../../poetry.lock; };
  fromSource = refused { preferWheels = false; };
  defaultOverrides = refused { overrides = throw "default"; };
  unknownGroup = refused { groups = [ "nothing" ]; };
}
