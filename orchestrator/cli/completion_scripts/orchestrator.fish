# Completion of orchestrator and fab for fish. For this shell:
#     orchestrator completion fish | source
# for all to come:
#     orchestrator completion fish | tee ~/.config/fish/completions/{orchestrator,fab}.fish >/dev/null

function __orchestrator_complete
    set -l words (commandline -opc)
    set -l partial (commandline -ct | string unescape)
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    set -l ending files
    set -l found 0
    for line in (env ORCHESTRATOR_COMPLETE=fish $program --complete -- $words "$partial" 2>/dev/null)
        switch $line
            case ':*'
                set ending (string sub -s 2 -- $line)
            case '?*'
                set found 1
                echo $line
        end
    end
    if test $found -eq 0
        switch $ending
            case files
                __fish_complete_path "$partial"
            case folders
                __fish_complete_directories "$partial"
        end
    end
end

complete --command orchestrator --no-files --keep-order --arguments '(__orchestrator_complete)'
complete --command fab --no-files --keep-order --arguments '(__orchestrator_complete)'
