# /etc/profile sets PATH anew for login shells: put the image's environment back in front.
case ":$PATH:" in
    *:/opt/venv/bin:*) ;;
    *) PATH="/opt/venv/bin:$PATH" ;;
esac
export PATH
export VIRTUAL_ENV=/opt/venv
