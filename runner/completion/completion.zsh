#compdef finetune-runner
# finetune-runner: completion for zsh. Written by `finetune-runner completion zsh`.

_finetune_runner_flags() {
  case $1 in
@FLAGS@
    *) echo --help ;;
  esac
}

_finetune_runner_values() { # KEY: its options or values, a word each
  local folder file
  for folder in @CONF@ ./conf; do
    for file in $folder/$1/*.yaml(N); do echo ${file:t:r}; done
  done
  case $1 in
@VALUES@
  esac
}

_finetune_runner() {
  local verb=${words[2]:-run} key
  case $PREFIX in
    -*) compadd -- ${=$(_finetune_runner_flags $verb)} ;;
    *=*)
      key=${${PREFIX%%=*}##*+}
      compset -P '*='
      compset -P '*[,\[]' # earlier values of a list
      compadd -- ${=$(_finetune_runner_values $key)} || _files
      ;;
    *.*) compadd -S '' -- @KEYS@ ;;
    *)
      ((CURRENT == 2)) && compadd -- @VERBS@
      compadd -S '' -- @FIRST@
      case $verb in @FOLDER_VERBS@) ((CURRENT > 2)) && _files -/ ;; esac
      ;;
  esac
}

if [ "$funcstack[1]" = _finetune_runner ]; then
  _finetune_runner "$@" # loaded from $fpath
else
  compdef _finetune_runner finetune-runner
fi
