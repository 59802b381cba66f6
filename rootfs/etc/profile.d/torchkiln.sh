# /etc/profile sets PATH anew for login shells: take back the one that this shell was started with.
torchkiln_path=$(sed -z -n 's/^PATH=//p' "/proc/$$/environ" 2>/dev/null | tr -d '\0')
case ":$torchkiln_path:" in
    *:/opt/venv/bin:*) PATH=$torchkiln_path ;;
    *) PATH="/opt/venv/bin:$PATH:/usr/local/nvidia/bin" ;;
esac
unset torchkiln_path
export PATH VIRTUAL_ENV=/opt/venv

# Who logs in wants the work, which is what `docker exec` starts in; scp and the like go on from the home.
case $- in *i*) [ "$PWD" != "$HOME" ] || cd /workspace 2>/dev/null || : ;; esac
