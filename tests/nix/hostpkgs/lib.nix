# The part of nixpkgs.lib that our Nix files use, for a machine that has no nixpkgs. A name that is
# not here is an error offline, so add it here first; ../parity.nix holds this lib and nixpkgs.lib
# to each other.
let
  inherit (builtins)
    attrNames
    concatLists
    concatMap
    concatStringsSep
    elem
    elemAt
    filter
    foldl'
    fromJSON
    genList
    hasAttr
    head
    isAttrs
    isFunction
    isInt
    isList
    isString
    length
    listToAttrs
    map
    mapAttrs
    readFile
    replaceStrings
    split
    stringLength
    substring
    tail
    toJSON
    ;

  lib = rec {
    inherit (builtins)
      all
      any
      attrNames
      attrValues
      concatLists
      concatMap
      concatStringsSep
      elem
      elemAt
      filter
      foldl'
      fromJSON
      functionArgs
      genList
      hasAttr
      head
      isAttrs
      isBool
      isFloat
      isFunction
      isInt
      isList
      isPath
      isString
      length
      listToAttrs
      map
      mapAttrs
      readFile
      removeAttrs
      replaceStrings
      split
      stringLength
      substring
      tail
      toJSON
      ;

    # functions
    id = x: x;
    fix =
      f:
      let
        x = f x;
      in
      x;
    flip =
      f: a: b:
      f b a;

    # attribute sets
    nameValuePair = name: value: { inherit name value; };
    genAttrs = names: f: listToAttrs (map (n: nameValuePair n (f n)) names);
    mapAttrs' = f: s: listToAttrs (map (n: f n s.${n}) (attrNames s));
    mapAttrsToList = f: s: map (n: f n s.${n}) (attrNames s);
    filterAttrs = f: s: listToAttrs (filter (p: f p.name p.value) (mapAttrsToList nameValuePair s));
    optionalAttrs = c: x: if c then x else { };
    recursiveUpdate =
      a: b:
      if isAttrs a && isAttrs b then
        a // mapAttrs (n: v: if a ? ${n} then recursiveUpdate a.${n} v else v) b
      else
        b;
    attrByPath =
      path: default: s:
      if path == [ ] then
        s
      else if isAttrs s && hasAttr (head path) s then
        attrByPath (tail path) default s.${head path}
      else
        default;
    setAttrByPath =
      path: v:
      if path == [ ] then v else { ${head path} = setAttrByPath (tail path) v; };

    # lists
    optional = c: x: if c then [ x ] else [ ];
    optionals = c: x: if c then x else [ ];
    range = a: b: if a > b then [ ] else genList (i: a + i) (b - a + 1);
    imap0 = f: l: genList (i: f i (elemAt l i)) (length l);
    flatten = x: if isList x then concatLists (map flatten x) else [ x ];
    unique = foldl' (a: x: if elem x a then a else a ++ [ x ]) [ ];
    last = l: elemAt l (length l - 1);
    take = n: l: genList (elemAt l) (if n < length l then n else length l);
    findFirst =
      p: default: l:
      let
        r = filter p l;
      in
      if r == [ ] then default else head r;

    # strings
    optionalString = c: x: if c then x else "";
    concatStrings = concatStringsSep "";
    concatMapStrings = f: l: concatStrings (map f l);
    concatMapStringsSep =
      sep: f: l:
      concatStringsSep sep (map f l);
    concatLines = concatMapStrings (s: s + "\n");
    hasPrefix = p: s: substring 0 (stringLength p) s == p;
    hasSuffix =
      p: s:
      let
        n = stringLength s - stringLength p;
      in
      n >= 0 && substring n (-1) s == p;
    hasInfix = p: s: length (split (escapeRegex p) s) > 1;
    escapeRegex =
      let
        special = [ "\\" "[" "{" "(" ")" "^" "$" "*" "+" "?" "." "|" ];
      in
      replaceStrings special (map (c: "\\" + c) special);
    removeSuffix =
      p: s: if hasSuffix p s then substring 0 (stringLength s - stringLength p) s else s;
    removePrefix = p: s: if hasPrefix p s then substring (stringLength p) (-1) s else s;
    splitString = sep: s: filter isString (split (escapeRegex sep) s);
    toInt =
      s:
      let
        v = fromJSON s;
      in
      if isInt v then v else throw "not an integer: ${s}";
    escapeShellArg =
      arg:
      let
        s = toString arg;
      in
      if builtins.match "[[:alnum:],._+:@%/-]+" s != null then
        s
      else
        "'" + replaceStrings [ "'" ] [ "'\\''" ] s + "'";
    escapeShellArgs = concatMapStringsSep " " escapeShellArg;
    versionAtLeast = a: b: builtins.compareVersions a b >= 0;

    # files
    importJSON = path: fromJSON (readFile path);
    importTOML = path: fromTOML (readFile path);
    # a file set is the list of its paths here; a folder stands for all below it
    fileset = {
      unions = flatten;
      toSource =
        { root, fileset }:
        let
          kept = map toString (flatten fileset);
          # a folder is kept when something kept lies below it
          keep = path: any (k: path == k || hasPrefix "${k}/" path || hasPrefix "${path}/" k) kept;
        in
        {
          outPath = builtins.path {
            name = "source";
            path = root;
            filter = path: _type: keep path;
          };
        };
    };

    # derivations
    isDerivation = x: isAttrs x && x.type or null == "derivation";
    getExe = p: "${p}/bin/${p.meta.mainProgram or p.pname or p.name}";
    getExe' = p: n: "${p}/bin/${n}";
    callPackageWith =
      scope: file: args:
      let
        f = if isFunction file then file else import file;
      in
      f (builtins.intersectAttrs (builtins.functionArgs f) scope // args);
    licenses.asl20 = {
      spdxId = "Apache-2.0";
    };
    assertMsg = c: m: c || throw m;

    inherit (import ./modules.nix { inherit lib; })
      evalModules
      literalExpression
      mkDefault
      mkEnableOption
      mkForce
      mkIf
      mkMerge
      mkOption
      mkOptionDefault
      mkOverride
      types
      ;
  };
in
lib
