# finetune-runner: completion for fish. Written by `finetune-runner completion fish`.

function __finetune_runner_flags
  switch $argv[1]
@FLAGS@
    case '*'
      echo --help
  end
end

function __finetune_runner_values # KEY: its options or values, separated by spaces or lines
  for folder in @CONF@ ./conf
    for file in $folder/$argv[1]/*.yaml
      string replace -r '.*/(.*)\.yaml$' '$1' -- $file
    end
  end
  switch $argv[1]
@VALUES@
  end
end

function __finetune_runner_words
  set -l word (commandline -ct)
  set -l before (commandline -opc)
  set -l verb run
  set -q before[2]; and set verb $before[2]
  switch $word
    case '-*'
      __finetune_runner_flags $verb | string split ' '
    case '*=*'
      set -l key (string replace -r '^\+*([^=]*)=.*' '$1' -- $word)
      set -l start (string replace -r '[^=,\[]*$' '' -- $word) # with the earlier values of a list
      for value in (__finetune_runner_values $key | string split ' ')
        echo $start$value
      end
    case '*.*'
      string split ' ' -- '@KEYS@'
    case '*'
      if not set -q before[2]
        string split ' ' -- '@VERBS@'
      end
      string split ' ' -- '@FIRST@'
      if contains -- $verb @FOLDER_VERBS@
        __fish_complete_directories $word
      end
  end
end

complete -c finetune-runner -f -a '(__finetune_runner_words)'
