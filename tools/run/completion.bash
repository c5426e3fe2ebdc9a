# Completion for ddprun in bash: its own options, as its help lists them, and then the command line of the program that it starts.
# Installed where bash-completion looks. By hand: source FILE
_ddprun() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} at=1 help
    help=$("${COMP_WORDS[0]}" --help 2> /dev/null) || return
    # Options with a value are those with something after their name that is not "Excludes:".
    local -A takes=()
    local names value name
    while read -r names value; do
        [[ $names == -* ]] || continue
        for name in ${names//,/ }; do
            [[ -n $value && $value =~ ^[A-Z]+[:=\ ] ]] && takes[$name]=1 || takes[$name]=0
        done
    done < <(sed -nE 's/^  (-[^ ]+) ?(.*)$/\1 \2/p' <<< "$help")
    # Where the program stands.
    while ((at < COMP_CWORD)); do
        [[ ${COMP_WORDS[at]} == -* ]] || break
        ((at += 1 + ${takes[${COMP_WORDS[at]}]:-0}))
    done
    if ((at < COMP_CWORD)) && declare -F _command_offset > /dev/null; then
        _command_offset "$at"
    elif ((at < COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    elif ((at == COMP_CWORD)) && [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "${!takes[*]}" -- "$word")
    elif ((at == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$word"; compgen -f -- "$word")
    else  # the value of an option
        case $before in
            --place) mapfile -t COMPREPLY < <(compgen -W "none numa cores" -- "$word") ;;
            --status)  # a job of this user, or a folder
                local folder jobs=
                for folder in {/dev/shm,"${TMPDIR:-/tmp}"}/ddprun-*; do
                    # compgen -W runs commands that its words name, and other users may write to these places.
                    [[ -O $folder && ! -L $folder ]] || continue
                    jobs+=" $(sed -nE 's/^pid ([0-9]+)$/\1/p' "$folder/job" 2> /dev/null)"
                done
                mapfile -t COMPREPLY < <(compgen -W "$jobs" -- "$word"; compgen -d -- "$word")
                ;;
            --record) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
            --secret-file | --log-dir | --log_dir | --report | --trace) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
        esac
    fi
}
complete -o filenames -F _ddprun ddprun
