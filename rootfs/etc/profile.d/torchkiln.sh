# /etc/profile resets PATH for login shells: restore the one that this shell was started with.
torchkiln_path=$(sed -z -n 's/^PATH=//p' "/proc/$$/environ" 2>/dev/null | tr -d '\0')
case ":$torchkiln_path:" in
    *:/opt/venv/bin:*) PATH=$torchkiln_path ;;
    *) PATH="/opt/venv/bin:$PATH:/usr/local/nvidia/bin" ;;
esac
unset torchkiln_path
export PATH VIRTUAL_ENV=/opt/venv

# Interactive logins start in /workspace, as `docker exec` does; scp and sftp start in the home folder.
case $- in *i*) [ "$PWD" != "$HOME" ] || cd /workspace 2>/dev/null || : ;; esac
