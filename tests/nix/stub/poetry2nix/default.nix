# A stub of poetry2nix for machines that cannot fetch it. It takes the same arguments as the pinned
# revision (an unknown one is an error), refuses what that revision would refuse or get wrong, and
# then links the locked distributions from the stand-in's virtual environment. What poetry2nix
# builds is not tested by it.
{ pkgs }:
let
  inherit (pkgs) lib;
  inherit (lib)
    all
    attrNames
    concatMap
    concatMapStringsSep
    concatStringsSep
    elem
    filter
    filterAttrs
    genAttrs
    hasSuffix
    isAttrs
    isList
    mapAttrsToList
    nameValuePair
    ;
  refuse = says: throw "poetry2nix (stub): ${says}";
  ensure = condition: says: if condition then true else refuse says;

  # JSON as Python's json.dumps(sort_keys=True) writes it, which is what Poetry hashes
  pythonJSON =
    v:
    if isAttrs v then
      let
        member = k: x: "${builtins.toJSON k}: ${pythonJSON x}";
      in
      "{${concatStringsSep ", " (mapAttrsToList member v)}}"
    else if isList v then
      "[${concatMapStringsSep ", " pythonJSON v}]"
    else
      builtins.toJSON v;
  # Poetry's content-hash: what of pyproject.toml decides the lock
  contentHash =
    pyproject:
    let
      pick = names: filterAttrs (n: _: elem n names);
    in
    builtins.hashString "sha256" (pythonJSON {
      project = pick [ "requires-python" "dependencies" "optional-dependencies" ] pyproject.project;
      tool.poetry =
        pick [ "dependencies" "source" "extras" "dev-dependencies" "group" ]
          pyproject.tool.poetry;
    });

  # a wheel's file name -> its last three parts
  tagsOf =
    file:
    let
      parts = builtins.match ".*-([^-]+)-([^-]+)-([^-]+)\\.whl" file;
      at = builtins.elemAt parts;
    in
    {
      python = lib.splitString "." (at 0);
      abi = at 1;
      platforms = lib.splitString "." (at 2);
    };
  # the tags that the pinned revision can parse; it stops at any other
  parses =
    file:
    let
      tags = tagsOf file;
      arch = "(x86_64|i686|aarch64|armv7l|ppc64|ppc64le|s390x)";
      platform = "any|manylinux[0-9_]+_${arch}|musllinux_.*|macosx_.*|win32|win_.*|linux_.*";
    in
    builtins.match "[a-z]+[0-9]*_?[a-z0-9]*" tags.abi != null
    && all (p: builtins.match platform p != null) tags.platforms;
  # a wheel that runs on this interpreter and system
  runsOn =
    python: file:
    let
      tags = tagsOf file;
      cp = "cp" + lib.replaceStrings [ "." ] [ "" ] python.pythonVersion;
      arch = builtins.head (lib.splitString "-" pkgs.stdenv.hostPlatform.system);
    in
    (elem tags.abi [ "none" "abi3" ] || (tags.abi == cp && elem cp tags.python))
    && lib.any (
      p: p == "any" || (lib.hasPrefix "manylinux" p && hasSuffix "_${arch}" p)
    ) tags.platforms;

  mkPoetryEnv =
    {
      projectDir ? null,
      pyproject ? projectDir + "/pyproject.toml",
      poetrylock ? projectDir + "/poetry.lock",
      overrides ? refuse "the default overrides are for builds from source",
      pwd ? projectDir,
      python ? pkgs.python3,
      preferWheels ? false,
      editablePackageSources ? { },
      extraPackages ? _ps: [ ],
      groups ? [ "dev" ],
      checkGroups ? [ "dev" ],
      extras ? [ "*" ],
    }:
    let
      project = lib.importTOML pyproject;
      inherit (project.tool) poetry;
      lock = lib.importTOML poetrylock;
      names = map (p: p.name) lock.package;

      dependencies = removeAttrs poetry.dependencies [ "python" ];
      ofGroup = g: (poetry.group.${g} or (refuse "pyproject.toml has no group ${g}")).dependencies;
      roots =
        attrNames dependencies ++ concatMap (g: attrNames (ofGroup g)) (groups ++ checkGroups);
      used = filter (p: lib.any (g: elem g p.groups) ([ "main" ] ++ groups)) lock.package;

      checkPackage =
        p:
        let
          wheels = filter (hasSuffix ".whl") (map (f: f.file) p.files);
        in
        ensure (!(p ? source)) "${p.name} is locked from a URL"
        && ensure (all parses wheels) "${p.name} has a wheel that the pinned revision stops at";
      machine = "Python ${python.pythonVersion} on ${pkgs.stdenv.hostPlatform.system}";
      checkWheel =
        p:
        ensure (lib.any (
          f: hasSuffix ".whl" f.file && runsOn python f.file
        ) p.files) "${p.name} has no wheel for ${machine}";
    in
    assert ensure (poetry ? name) "[tool.poetry] must have a name";
    assert ensure (lib.hasPrefix "2." lock.metadata.lock-version) "poetry.lock is not of format 2";
    assert ensure (
      contentHash project == lock.metadata.content-hash
    ) "poetry.lock is not the lock of this pyproject.toml: run poetry lock";
    assert ensure (lib.unique names == names) "a package is locked twice, and markers are not read";
    assert ensure (!elem "torch" names) "torch comes from nixpkgs, never from the lock";
    assert ensure (isList overrides) "overrides must be a list";
    assert ensure preferWheels "without preferWheels everything is compiled from source";
    assert all (n: ensure (elem n names) "${n} is not in poetry.lock") roots;
    assert all checkPackage lock.package;
    assert all checkWheel used;
    python.standIn.environment (
      [
        (python.standIn.distributions {
          name = "locked-${concatStringsSep "-" groups}";
          inherit roots;
          locked = lib.listToAttrs (map (p: nameValuePair p.name p.version) lock.package);
        })
      ]
      ++ extraPackages python.pkgs
    );

  # what else the pinned revision offers, none of which the flake may use
  unused = genAttrs [
    "mkPoetryApplication"
    "mkPoetryPackages"
    "mkPoetryEditablePackage"
    "mkPoetryScriptsPackage"
    "overrides"
    "defaultPoetryOverrides"
  ] (name: refuse "the flake must not use ${name}");
in
unused // { inherit mkPoetryEnv; }
