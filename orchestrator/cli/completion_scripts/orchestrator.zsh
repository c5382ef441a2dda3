#compdef orchestrator fab
# Completion of orchestrator and fab for zsh. For this shell, after compinit:
#     source <(orchestrator completion zsh)
# for all to come, in a folder of $fpath:
#     orchestrator completion zsh > ~/.zsh/completions/_orchestrator

_orchestrator() {
    local line value ending=files
    local -a described unfinished
    for line in "${(@f)$(ORCHESTRATOR_COMPLETE=zsh ${~words[1]} --complete -- "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
        value=${line%%$'\t'*}
        case $value in
            :*) ending=${value#:} ;;
            *=) unfinished+=("$value") ;;
            ?*) described+=("${value//:/\\:}:${line#*$'\t'}") ;;
        esac
    done
    (( $#unfinished )) && compadd -S '' -a unfinished && return
    (( $#described )) && _describe -V 'candidates' described && return
    case $ending in
        files) _files ;;
        folders) _files -/ ;;
    esac
}

if [[ $funcstack[1] == _orchestrator ]]; then
    _orchestrator "$@"
else
    compdef _orchestrator orchestrator fab
fi
