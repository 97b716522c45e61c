# finetune-runner: completion for bash 3.2 and later. Written by `finetune-runner completion bash`.

_finetune_runner_flags() {
  case $1 in
@FLAGS@
    *) echo --help ;;
  esac
}

_finetune_runner_values() { # KEY: its options or values, a word each
  local folder file name
  for folder in @CONF@ ./conf; do
    for file in "$folder/$1"/*.yaml; do
      [ -e "$file" ] || continue
      name=${file##*/}
      echo "${name%.yaml}"
    done
  done
  case $1 in
@VALUES@
  esac
}

_finetune_runner_complete() { # WORD VERB IS_FIRST
  local word=$1 verb=$2 key value done candidates=""
  COMPREPLY=()
  case $word in
    -*) COMPREPLY=($(compgen -W "$(_finetune_runner_flags "$verb")" -- "$word")) ;;
    *=*)
      key=${word%%=*}
      key=${key##*+}
      value=${word#*=}
      done=${value%"${value##*[,\[]}"} # earlier values of a list
      COMPREPLY=($(compgen -P "$done" -W "$(_finetune_runner_values "$key")" -- "${value##*[,\[]}"))
      case $COMP_WORDBREAKS in *=*) ;; *) COMPREPLY=("${COMPREPLY[@]/#/${word%%=*}=}") ;; esac
      ;;
    *.*)
      COMPREPLY=($(compgen -W "@KEYS@" -- "$word"))
      compopt -o nospace 2>/dev/null
      ;;
    *)
      [ "$3" = yes ] && candidates="@VERBS@"
      COMPREPLY=($(compgen -W "$candidates" -- "$word"))
      candidates=$(compgen -W "@FIRST@" -- "$word")
      if [ -n "$candidates" ]; then
        COMPREPLY+=($candidates)
        [ ${#COMPREPLY[@]} -eq 1 ] && compopt -o nospace 2>/dev/null
      fi
      case $verb in @FOLDER_VERBS@) COMPREPLY+=($(compgen -d -- "$word")) ;; esac
      ;;
  esac
}

_finetune_runner_words() { # HOW_MANY: words of the command itself
  local line=${COMP_LINE:0:COMP_POINT} words word first=no
  word=${line##*[[:space:]]}
  read -r -a words <<<"${line%"$word"}"
  [ ${#words[@]} -eq "$1" ] && first=yes
  _finetune_runner_complete "$word" "${words[$1]:-run}" $first
}

_finetune_runner() { _finetune_runner_words 1; }

_finetune_runner_module() { # python -m runner
  COMPREPLY=()
  [ "${COMP_WORDS[1]}" = -m ] && [ "${COMP_WORDS[2]}" = runner ] && [ "$COMP_CWORD" -gt 2 ] && _finetune_runner_words 3
}

complete -o bashdefault -o default -F _finetune_runner finetune-runner
for _finetune_runner_name in python python3; do # unless somebody else completes them
  complete -p $_finetune_runner_name >/dev/null 2>&1 ||
    complete -o bashdefault -o default -F _finetune_runner_module $_finetune_runner_name
done
unset _finetune_runner_name
