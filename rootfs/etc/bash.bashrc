# Every interactive bash: by `docker run -it`, `docker exec -it`, SSH, tmux and Jupyter's terminal.
case $- in *i*) ;; *) return ;; esac

. /opt/torchkiln/account # `docker exec` does not run the entrypoint
. /opt/torchkiln/guard

shopt -s checkwinsize histappend
HISTCONTROL=ignoreboth
eval "$(dircolors -b)"
alias ls='ls --color=auto' grep='grep --color=auto' ll='ls -alF' la='ls -A'
export LESS="${LESS:--R}"
if ! shopt -oq posix && [ -f /usr/share/bash-completion/bash_completion ]; then
    . /usr/share/bash-completion/bash_completion
fi

command -v vim >/dev/null || alias vim=vi # vim-tiny has only vi

# $USER and not \u: bash looked up the name before the account file set it.
torchkiln_tag=$(sed -n 's/^  "tag": "\(.*\)",$/\1/p' /etc/torchkiln/image.json)
PS1='\[\e[1;32m\]$USER@'"${torchkiln_tag%-cudnn*}"'\[\e[0m\]:\[\e[1;34m\]\w\[\e[0m\]\$ '
unset torchkiln_tag

# Once per login, not in each tmux window; ~/.hushlogin turns it off.
if [ "${SHLVL:-1}" = 1 ] && [ -z "${TMUX-}${STY-}" ] && [ -t 1 ] && [ ! -e ~/.hushlogin ]; then
    /usr/bin/python3 -IB /opt/torchkiln/workplace greeting
fi
