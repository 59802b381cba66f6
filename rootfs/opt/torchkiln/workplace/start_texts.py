"""Contains the texts of `help`, settings, the start and the greeting, in English and simplified Chinese."""

from __future__ import annotations

# By key: English, Chinese. Placeholders are those of str.format.
TEXTS: dict[str, tuple[str, str]] = {
    # the machine, warnings
    "start.gpus": ("GPUs: {gpus}", "GPU：{gpus}"),
    "start.none": ("none", "无"),
    "start.driver": ("{gpus}, driver {version} (CUDA {cuda})", "{gpus}，驱动 {version}（CUDA {cuda}）"),
    "start.core": ("1 core", "1 个核"),
    "start.cores": ("{cores:g} cores", "{cores:g} 个核"),
    "start.memory": ("{size} of memory", "内存 {size}"),
    "start.limited": ("{size} of memory (limited)", "内存 {size}（受限）"),
    "start.machine": (
        "{cores}, {memory}, /dev/shm {shm}; uid {uid} can write to {folders}",
        "{cores}，{memory}，/dev/shm {shm}；uid {uid} 可以写入 {folders}",
    ),
    "start.not-writable": (
        "{cores}, {memory}, /dev/shm {shm}; uid {uid} can write to no folder",
        "{cores}，{memory}，/dev/shm {shm}；uid {uid} 不能写入任何文件夹",
    ),
    "warning": ("warning: {text}", "警告：{text}"),
    "warning.fault": ("{fault}: {remedy}", "{fault}：{remedy}"),
    "warning.too-old": (
        "driver {version} is too old: this image (CUDA {wheel_cuda}) needs {needed} or newer: update the"
        " host's driver, or use an image for an older CUDA",
        "驱动 {version} 太旧：此镜像（CUDA {wheel_cuda}）需要 {needed} 或更新版本：升级主机驱动，"
        "或换用 CUDA 版本更低的镜像",
    ),
    "warning.unserved": (
        "{name} (compute capability {capability}) is not supported by torch {torch}, which has code for"
        " {archs}: use an image with another torch (`torchkiln pick` finds it)",
        "torch {torch} 不支持 {name}（计算能力 {capability}），它只含 {archs} 的代码："
        "换用其他 torch 版本的镜像（`torchkiln pick` 可以查找）",
    ),
    "warning.cut": (
        "{name} (compute capability {capability}) cannot be used: this image has device code for {gpus} only:"
        " {remedy}",
        "{name}（计算能力 {capability}）不能使用：此镜像只含计算能力 {gpus} 的设备代码：{remedy}",
    ),
    "warning.shm": (
        "/dev/shm has {size}, too small for DataLoader workers and NCCL: add --shm-size=8g",
        "/dev/shm 只有 {size}，对 DataLoader 工作进程和 NCCL 来说太小：加上 --shm-size=8g",
    ),
    "warning.closed": (
        "uid {uid} cannot write to {folders}: chown the folder, or mount another one",
        "uid {uid} 不能写入 {folders}：对该文件夹执行 chown，或挂载另一个文件夹",
    ),
    "refused": (
        "this image has device code for compute capability {gpus} only, and no GPU here can run it: {names}",
        "此镜像只含计算能力 {gpus} 的设备代码，本机的 GPU 都不能运行：{names}",
    ),
    "refused.do": (
        "{remedy}; nothing was started (TORCHKILN_ANY_GPU=yes starts it all the same)",
        "{remedy}；没有启动任何程序（TORCHKILN_ANY_GPU=yes 可强制启动）",
    ),
    # services
    "start.image": ("{tag}: torch {torch}, Python {python}", "{tag}：torch {torch}，Python {python}"),
    "start.folder": (
        "cannot write to {folder}: {error}; with --read-only, add --tmpfs /run --tmpfs /tmp:exec",
        "不能写入 {folder}：{error}；使用 --read-only 时，请加上 --tmpfs /run --tmpfs /tmp:exec",
    ),
    "start.not-private": (
        "owned by another user, or writable by other users",
        "属于其他用户，或其他用户可以写入",
    ),
    "start.nothing": ("nothing was started", "没有启动任何程序"),
    "start.no-service": (
        "no service to run: JupyterLab and SSH are off (above). Give a command (docker run IMAGE bash), or a"
        " public key (SSH_PUBLIC_KEY)",
        "没有可运行的服务：JupyterLab 和 SSH 都未启用（见上）。请给出命令（docker run IMAGE bash），"
        "或公钥（SSH_PUBLIC_KEY）",
    ),
    "start.same-port": (
        "{one} and {other} are both {port}: address already in use; set one of them to another port",
        "{one} 和 {other} 都是 {port}：地址已被占用；请把其中一个改为其他端口",
    ),
    "jupyter.off": ("Jupyter: off", "Jupyter：未启用"),
    "jupyter": ("Jupyter: {url}", "Jupyter：{url}"),
    "jupyter.own-token": (
        "Jupyter: {url}  (log in with the token that you set)",
        "Jupyter：{url}  （用您设置的令牌登录）",
    ),
    "jupyter.no-login": (
        "Jupyter: {url}  (no login: anyone who can reach this port can run programs here)",
        "Jupyter：{url}  （不需要登录：能访问这个端口的人都可以在这里运行程序）",
    ),
    "jupyter.user": (
        "JupyterLab runs as `user`, uid {uid}, which owns {folder} (JUPYTER_USER=root: as root)",
        "JupyterLab 以 `user`（uid {uid}，{folder} 的所有者）运行（JUPYTER_USER=root：以 root 运行）",
    ),
    "jupyter.root": (
        "JupyterLab runs as root, because `user` does not own {folder}, or cannot write to it; new files"
        " belong to root. If root owns the mounted folder, you can give it to `user` on the host:"
        " chown -R 1000:1000 ./workspace",
        "JupyterLab 以 root 运行，因为 {folder} 不属于 `user`，或 `user` 不能写入；新文件属于 root。"
        "如果挂载的文件夹属于 root，可以在主机上把它交给 `user`：chown -R 1000:1000 ./workspace",
    ),
    "ownership.root": (
        "{folder} belongs to root: `user` cannot change files in it. To change this: docker exec CONTAINER"
        " chown -R user: {folder}",
        "{folder} 属于 root：`user` 不能修改其中的文件。如需改变：docker exec CONTAINER"
        " chown -R user: {folder}",
    ),
    "tensorboard": ("TensorBoard: port {port}, no login", "TensorBoard：端口 {port}，不需要登录"),
    "ssh.off": ("SSH: off", "SSH：未启用"),
    "ssh.off-because": ("SSH: off: {why}", "SSH：未启用：{why}"),
    "ssh.and": (" and ", " 和 "),
    "ssh.or": (" or ", " 或 "),
    "ssh": (
        "SSH: port {ports}: ssh -p PUBLISHED_PORT {logins}; host key {fingerprint}",
        "SSH：端口 {ports}：ssh -p 发布的端口 {logins}；主机密钥 {fingerprint}",
    ),
    "ssh.note": ("SSH: {note}", "SSH：{note}"),
    "ssh.no-key": (
        'no public key (-e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)")',
        '没有公钥（-e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)"）',
    ),
    "ssh.file": ("{path}: {error}", "{path}：{error}"),
    "ssh.keygen": ("{program}: exit status {status}", "{program}：退出状态 {status}"),
    "ssh.line-breaks": (
        "variables with line breaks are not set in SSH sessions: {names}",
        "含有换行的变量不会传入 SSH 会话：{names}",
    ),
    "ssh.no-name": (
        "uid {uid} has no user name: start the services with /opt/torchkiln/entrypoint",
        "uid {uid} 没有用户名：请用 /opt/torchkiln/entrypoint 启动服务",
    ),
    "ssh.private": (
        "{where}: this is a private key; keep it secret, and use its .pub file",
        "{where}：这是私钥；请妥善保管，改用对应的 .pub 文件",
    ),
    "ssh.invalid": (
        "{where}, line {number}: not an OpenSSH public key",
        "{where}，第 {number} 行：不是 OpenSSH 公钥",
    ),
    "ssh.invalid-host-key": (
        "{path}: invalid private key; delete it to have a new one generated",
        "{path}：私钥无效；删除后会重新生成",
    ),
    "ssh.host-keys-lost": (
        "cannot write to {folder}: the host keys are lost with this container (set SSH_HOST_KEYS to another"
        " folder)",
        "不能写入 {folder}：主机密钥会随容器一起丢失（可把 SSH_HOST_KEYS 设为其他文件夹）",
    ),
    "exit.status": ("exited with status {status}", "已退出，状态 {status}"),
    "exit.signal": ("was killed by {signal}", "被 {signal} 终止"),
    "exit.memory": ("was killed by {signal} (often: out of memory)", "被 {signal} 终止（通常是内存不足）"),
    "exit.number": ("signal {number}", "信号 {number}"),
    "service.ends": ("{name} {what}: the container exits", "{name} {what}：容器退出"),
    "service.ends-often": (
        "{name} {what}, {count} times within {seconds:.0f} s: the container exits",
        "{name} {what}，{seconds:.0f} 秒内 {count} 次：容器退出",
    ),
    "service.restarts": ("{name} {what}: restarting it", "{name} {what}：正在重新启动"),
    "service.not-started": (
        "cannot start {name}: {program}: {error}: the container exits",
        "无法启动 {name}：{program}：{error}：容器退出",
    ),
    "health.early": ("the services have not been started yet", "服务尚未启动"),
    "command.unknown": (
        "no such command: {name!r}; run `help` for a list",
        "没有这个命令：{name!r}；执行 `help` 查看",
    ),
    # settings
    "settings.help": (
        "nothing was started; `docker run IMAGE help` lists the settings",
        "没有启动任何程序；`docker run IMAGE help` 列出所有设置",
    ),
    "settings.sudo": (
        "TORCHKILN_SUDO: only possible in a container that runs as root: remove --user",
        "TORCHKILN_SUDO：只有以 root 运行的容器才能使用：请去掉 --user",
    ),
    "settings.switch": ("{name}={value!r}: must be yes or no", "{name}={value!r}：必须是 yes 或 no"),
    "settings.unread": (
        "{name} is not a setting of this image, and was ignored: did you mean {meant}?",
        "{name} 不是此镜像的设置，已被忽略：是不是 {meant}？",
    ),
    "settings.user": (
        "JUPYTER_USER={value!r}: must be user or root",
        "JUPYTER_USER={value!r}：必须是 user 或 root",
    ),
    "settings.port": (
        "{name}={value!r}: a port is a number from 1 to 65535",
        "{name}={value!r}：端口是 1 到 65535 的整数",
    ),
    "settings.path": (
        "JUPYTER_BASE_URL={value!r}: must be a URL path, such as /lab/anna/",
        "JUPYTER_BASE_URL={value!r}：必须是 URL 路径，例如 /lab/anna/",
    ),
    "settings.file": ("{name}: cannot read {path}: {error}", "{name}：无法读取 {path}：{error}"),
    "settings.no-text": ("not a text file", "不是文本文件"),
    "settings.ascii": (
        "{name}: only printable ASCII characters without spaces are allowed",
        "{name}：只能包含可打印的 ASCII 字符，不能有空格",
    ),
    "settings.weak": (
        "{name}: too weak: {count} characters, {different} different; at least {least} with {least_different}"
        " different ones are required: the token gives access to this container. Unset it to have one"
        " generated, or allow it: -e JUPYTER_ALLOW_WEAK_TOKEN=yes",
        "{name}：太弱：{count} 个字符，其中 {different} 个不同；至少需要 {least} 个字符、"
        "{least_different} 个不同：令牌可以访问这个容器。取消设置即可自动生成，或允许它："
        "-e JUPYTER_ALLOW_WEAK_TOKEN=yes",
    ),
    "setting.JUPYTER": ("off: no JupyterLab", "off：不启动 JupyterLab"),
    "setting.JUPYTER_USER": (
        "root: JupyterLab runs as root, although `user` owns the folder",
        "root：即使文件夹属于 `user`，JupyterLab 也以 root 运行",
    ),
    "setting.JUPYTER_TOKEN": (
        "the login token, at least {least} characters",
        "登录令牌，至少 {least} 个字符",
    ),
    "setting.JUPYTER_PASSWORD": (
        "another name of JUPYTER_TOKEN, with the same rules",
        "JUPYTER_TOKEN 的另一个名字，规则相同",
    ),
    "setting.JUPYTER_TOKEN_FILE": (
        "a file that contains the token, such as a mounted secret",
        "存放令牌的文件，例如挂载的 secret",
    ),
    "setting.JUPYTER_ALLOW_WEAK_TOKEN": (
        "yes: allow any token; an empty one disables the login",
        "yes：允许任何令牌；空令牌表示不需要登录",
    ),
    "setting.JUPYTER_PORT": ("port of JupyterLab", "JupyterLab 的端口"),
    "setting.JUPYTER_BASE_URL": ("URL path behind a reverse proxy", "反向代理之后的 URL 路径"),
    "setting.JUPYTER_ALLOW_ORIGIN": (
        "allowed origin, for a proxy that does not forward the Host header",
        "允许的来源，用于不转发 Host 头的代理",
    ),
    "setting.SSH": ("off: no SSH, even if there are keys", "off：即使有公钥也不启动 SSH"),
    "setting.SSH_PUBLIC_KEY": (
        "public keys that may log in, one per line (as in id_ed25519.pub); without a key SSH is off",
        "允许登录的公钥，每行一个（id_ed25519.pub 的内容）；没有公钥就不启动 SSH",
    ),
    "setting.PUBLIC_KEY": (
        "another name of SSH_PUBLIC_KEY; with both, the keys of both may log in",
        "SSH_PUBLIC_KEY 的另一个名字；两者都设置时，两者的公钥都可以登录",
    ),
    "setting.SSH_PORT": (
        "port of sshd; 2222 in a container that does not run as root",
        "sshd 的端口；不以 root 运行的容器为 2222",
    ),
    "setting.SSH_HOST_KEYS": (
        "folder of the host keys: mount a volume there to keep them",
        "主机密钥的文件夹：在此挂载卷即可保留",
    ),
    "setting.TENSORBOARD_LOGDIR": (
        "a folder of logs, such as /workspace/runs: starts TensorBoard for it, without a login",
        "日志文件夹，例如 /workspace/runs：为它启动 TensorBoard，不需要登录",
    ),
    "setting.TENSORBOARD_PORT": ("port of TensorBoard", "TensorBoard 的端口"),
    "setting.TORCHKILN_SUDO": (
        "yes: `user` may use sudo without a password",
        "yes：`user` 使用 sudo 不需要密码",
    ),
    "setting.TORCHKILN_RESTART": (
        "no: the container exits when one of its services exits",
        "no：任一服务退出时容器随之退出",
    ),
    "setting.TORCHKILN_ANY_GPU": (
        "yes: start an image for some GPUs, although it runs on no GPU of this host",
        "yes：只适用于部分 GPU 的镜像，即使不能在本机的 GPU 上运行也启动",
    ),
    "setting.PIP_CONSTRAINT, UV_CONSTRAINT": (
        "set them empty to let pip and uv replace torch",
        "设为空值即允许 pip 和 uv 替换 torch",
    ),
    "setting.TZ": ("time zone, such as Europe/Berlin", "时区，例如 Asia/Shanghai"),
    "default.JUPYTER_TOKEN": ("generated", "自动生成"),
    # a shell's greeting
    "greeting": (
        "PyTorch {torch} for CUDA {cuda} (built with {wheel_cuda}), cuDNN {cudnn}, NCCL {nccl},"
        " Python {python}",
        "PyTorch {torch}，CUDA {cuda}（以 {wheel_cuda} 构建），cuDNN {cudnn}，NCCL {nccl}，Python {python}",
    ),
    "greeting.apt": (
        "apt has no package lists: run apt-get update first",
        "apt 没有软件包列表：请先执行 apt-get update",
    ),
    "greeting.more": (
        "More: `doctor` checks this machine, `nvidia-smi` shows the GPUs, `env help` explains this image",
        "更多信息：`doctor` 检查本机，`nvidia-smi` 显示 GPU，`env help` 说明此镜像",
    ),
    # help
    "help.head": (
        "{tag}: PyTorch {torch} for NVIDIA drivers {min_driver} and newer",
        "{tag}：PyTorch {torch}，适用于 {min_driver} 及更新的 NVIDIA 驱动",
    ),
    "help.settings": ("Settings (-e NAME=VALUE):", "设置（-e NAME=VALUE）："),
    "help.use": (
        """\
Start:
  docker run --gpus all -p 8888:8888 -p 2222:22 -v ./workspace:/workspace IMAGE
      JupyterLab, and SSH if there is a key (-e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)")
  docker run --gpus all -it --rm IMAGE bash
      a shell, or any other command
  docker run --gpus all --rm IMAGE doctor [--json]
      check driver, GPUs, memory and services
  docker run --user $(id -u):$(id -g) -p 2222:2222 ... IMAGE
      files belong to you; SSH listens on 2222
  docker exec -it CONTAINER bash
      a shell in a running container""",
        """\
启动：
  docker run --gpus all -p 8888:8888 -p 2222:22 -v ./workspace:/workspace IMAGE
      JupyterLab；提供公钥时还有 SSH（-e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)"）
  docker run --gpus all -it --rm IMAGE bash
      shell，或任何其他命令
  docker run --gpus all --rm IMAGE doctor [--json]
      检查驱动、GPU、内存和服务
  docker run --user $(id -u):$(id -g) -p 2222:2222 ... IMAGE
      文件归您所有；SSH 监听 2222
  docker exec -it CONTAINER bash
      运行中的容器里的 shell""",
    ),
    "help.more": (
        """\
Ports    8888 JupyterLab, 22 SSH, 6006 TensorBoard
Work     in /workspace; --shm-size=8g for DataLoader workers and NCCL
Keys     SSH_PUBLIC_KEY, the file /etc/ssh/authorized_keys, or ~/.ssh/authorized_keys. Accounts: root and
         `user`; in a container that does not run as root, only `user`.
Users    `user` has the uid of the owner of /workspace, and JupyterLab runs as `user`. docker exec enters as
         root. With -e TORCHKILN_SUDO=yes, sudo works for `user`.
GPUs     nvidia-smi -l in a terminal (JupyterLab: Launcher > Terminal), !nvidia-smi in a notebook
Python   /opt/venv. As root, pip and uv install there. As `user`, pip installs into ~/.local, and uv needs
         an environment of its own (uv venv).
         /etc/torchkiln/constraints.txt keeps the versions of torch and its CUDA libraries.
Recipes  cd /opt/torchkiln/examples && python -m recipes.train --help
Boards   -e TENSORBOARD_LOGDIR=/workspace/runs starts TensorBoard. By hand: tensorboard --logdir runs
         --bind_all; without --bind_all only programs in the container reach it.
apt      run apt-get update first: the image has no package lists.
exec     In a container with --user: docker exec CONTAINER /opt/torchkiln/entrypoint COMMAND, which gives
         COMMAND a user name and a home.
bash     has its own `help`: run `env help` for this text.""",
        """\
端口     8888 JupyterLab，22 SSH，6006 TensorBoard
工作     在 /workspace 中；DataLoader 工作进程和 NCCL 需要 --shm-size=8g
公钥     SSH_PUBLIC_KEY、文件 /etc/ssh/authorized_keys 或 ~/.ssh/authorized_keys。账户：root 和
         `user`；不以 root 运行的容器只有 `user`。
用户     `user` 的 uid 就是 /workspace 所有者的 uid，JupyterLab 以 `user` 运行。docker exec 以 root
         进入。设置 -e TORCHKILN_SUDO=yes 后 `user` 可以使用 sudo。
GPU      在终端里 nvidia-smi -l（JupyterLab：Launcher > Terminal），在 notebook 里 !nvidia-smi
Python   /opt/venv。root 的 pip 和 uv 安装到这里。`user` 的 pip 安装到 ~/.local，uv 需要自己的环境
         （uv venv）。
         /etc/torchkiln/constraints.txt 保持 torch 及其 CUDA 库的版本不变。
示例     cd /opt/torchkiln/examples && python -m recipes.train --help
看板     -e TENSORBOARD_LOGDIR=/workspace/runs 启动 TensorBoard。手动启动：tensorboard --logdir runs
         --bind_all；不加 --bind_all 时只有容器内的程序能访问。
apt      请先执行 apt-get update：镜像里没有软件包列表。
exec     在使用 --user 的容器里：docker exec CONTAINER /opt/torchkiln/entrypoint COMMAND，
         使 COMMAND 有用户名和主目录。
bash     有自己的 `help`：执行 `env help` 显示本文。""",
    ),
}
