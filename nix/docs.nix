# docs/reference/nixos.md: every option of services.dsv41, from the options themselves.
{ lib, pkgs }:
let
  inherit (builtins) isAttrs isList toJSON;
  inherit (lib) concatLists concatStringsSep mapAttrsToList optional;

  inherit
    (lib.evalModules {
      modules = [
        ./modules
        { _module.args = { inherit pkgs; }; }
      ];
    })
    options
    ;

  # a value as Nix source
  show =
    value:
    if value._type or null == "literalExpression" then
      value.text
    else if isList value then
      concatStringsSep " " ([ "[" ] ++ map show value ++ [ "]" ])
    else if isAttrs value then
      concatStringsSep " " ([ "{" ] ++ mapAttrsToList (n: v: "${n} = ${show v};") value ++ [ "}" ])
    else
      toJSON value;

  entry =
    path: option:
    let
      default = option.defaultText or option.default;
      facts =
        [ "type: ${option.type.description or option.type.name}" ]
        ++ optional (option ? default) "default: `${show default}`"
        ++ optional (!option ? default && !(option.readOnly or false)) "required"
        ++ optional (option ? example) "example: `${show option.example}`";
    in
    ''
      ### `${path}`

      ${lib.removeSuffix "\n" option.description}

      ${concatStringsSep "\n" (map (fact: "- ${fact}") facts)}
    '';

  # an option, then those of the submodules in its list
  ofOption =
    path: option:
    optional (!(option.internal or false)) (entry path option)
    ++ walk "${path}.*" (removeAttrs ((option.type.getSubOptions or (_: { })) [ ]) [ "_module" ]);
  walk =
    path: set:
    concatLists (
      mapAttrsToList (
        name: value: (if value._type or null == "option" then ofOption else walk) "${path}.${name}" value
      ) set
    );
in
pkgs.writeText "nixos.md" ''
  # NixOS options

  Generated from nix/modules by `nix build .#nixos-options`; a check holds the two to each other.
  [How to use them](../howto/nixos.md).

  ${concatStringsSep "\n" (walk "services.dsv41" options.services.dsv41)}''
