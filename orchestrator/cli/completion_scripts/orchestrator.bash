# Completion of orchestrator and fab for bash 4.4 or newer. For this shell:
#     source <(orchestrator completion bash)
# for all to come, with the package bash-completion:
#     mkdir -p ~/.local/share/bash-completion/completions
#     orchestrator completion bash | tee ~/.local/share/bash-completion/completions/{orchestrator,fab} >/dev/null

_orchestrator_complete() {
    local value rest ending=files
    COMPREPLY=()
    while IFS=$'\t' read -r value rest; do
        case $value in
            :*) ending=${value#:} ;;
            "$2"?* | "$2") COMPREPLY+=("$value") ;;
        esac
    done < <(ORCHESTRATOR_COMPLETE=bash "${1/#\~\//$HOME/}" --complete -- "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    case $ending in
        files) compopt -o default ;;
        folders) compopt -o dirnames ;;
    esac
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}

complete -F _orchestrator_complete orchestrator fab
