"""Contains the texts of `doctor` and about the driver, in English and simplified Chinese."""

from __future__ import annotations

# By key: English, Chinese. Placeholders are those of str.format.
TEXTS: dict[str, tuple[str, str]] = {
    "list.separator": (", ", "、"),
    # doctor: the columns
    "state.ok": ("ok", "正常"),
    "state.warning": ("warning", "警告"),
    "state.problem": ("problem", "问题"),
    "about.image": ("image", "镜像"),
    "about.driver": ("driver", "驱动"),
    "about.GPUs": ("GPUs", "GPU"),
    "about./dev/shm": ("/dev/shm", "/dev/shm"),
    "about.memory": ("memory", "内存"),
    "about.NCCL": ("NCCL", "NCCL"),
    "about.cuDNN": ("cuDNN", "cuDNN"),
    "about.torch": ("torch", "torch"),
    "about.compiler": ("compiler", "编译器"),
    "about.files": ("files", "文件"),
    "about.user": ("user", "用户"),
    "about.services": ("services", "服务"),
    "about.jupyter": ("jupyter", "jupyter"),
    "about.sshd": ("sshd", "sshd"),
    "about.tensorboard": ("tensorboard", "tensorboard"),
    "about.time": ("time", "时间"),
    "problems.0": ("no problems", "没有问题"),
    "problems.1": ("1 problem", "1 个问题"),
    "problems": ("{count} problems", "{count} 个问题"),
    "doctor.about": (
        "Check this machine for this image: driver, GPUs, memory, services.",
        "检查本机能否运行此镜像：驱动、GPU、内存、服务。",
    ),
    "doctor.json": ("print one JSON object", "输出一个 JSON 对象"),
    # doctor: image, driver, GPUs
    "image": (
        "{tag}: torch {torch}, built with CUDA {wheel_cuda}, Python {python}",
        "{tag}：torch {torch}，以 CUDA {wheel_cuda} 构建，Python {python}",
    ),
    "image.gpus": (
        "{image}; device code for compute capability {gpus} only",
        "{image}；只含计算能力 {gpus} 的设备代码",
    ),
    "unknown": ("unknown", "未知"),
    "driver.unknown": ("unknown version", "版本未知"),
    "driver.supports": ("{version}, supports CUDA up to {cuda}", "{version}，最高支持 CUDA {cuda}"),
    "driver.needs": (
        "{driver}; this image needs {needed} or newer",
        "{driver}；此镜像需要 {needed} 或更新版本",
    ),
    "driver.too-old": (
        "{driver}; this image needs driver {needed} or newer",
        "{driver}；此镜像需要 {needed} 或更新的驱动",
    ),
    "driver.update": (
        "update the host's driver, or use an image for an older CUDA",
        "升级主机驱动，或换用 CUDA 版本更低的镜像",
    ),
    "driver.compatibility": (
        "{driver}; compatibility mode: CUDA {wheel_cuda} shipped with {full}",
        "{driver}；兼容模式：CUDA {wheel_cuda} 随驱动 {full} 发布",
    ),
    "gpus.none": ("none: torch runs on the CPU", "没有：torch 在 CPU 上运行"),
    "gpus.unserved": (
        "{names}: not supported by this torch, which has code for {archs}",
        "{names}：这个 torch 不支持，它只含 {archs} 的代码",
    ),
    "gpus.another-torch": (
        "use an image with another torch; `torchkiln pick` finds it",
        "换用其他 torch 版本的镜像；`torchkiln pick` 可以查找",
    ),
    "gpus.cut": (
        "{names}: this image has device code for compute capability {gpus} only",
        "{names}：此镜像只含计算能力 {gpus} 的设备代码",
    ),
    "gpus.full-image": ("use the image for all GPUs: {tag}", "换用适用于所有 GPU 的镜像：{tag}"),
    "gpus.served": (
        "{gpus}; {memory}; compute capability {lowest} is supported",
        "{gpus}；{memory}；支持计算能力 {lowest}",
    ),
    # doctor: the machine
    "shm.small": (
        "{size}: too small for DataLoader workers and NCCL",
        "{size}：对 DataLoader 工作进程和 NCCL 来说太小",
    ),
    "shm.do": (
        "docker run --shm-size=8g, or a pod's emptyDir of medium Memory at /dev/shm",
        "docker run --shm-size=8g；在 Pod 中把 medium 为 Memory 的 emptyDir 挂载到 /dev/shm",
    ),
    "memory.limit": ("{size}, limit of the container; {cores:g} cores", "{size}，容器的上限；{cores:g} 个核"),
    "memory.host": (
        "{size}, all memory of the host; {cores:g} cores",
        "{size}，主机的全部内存；{cores:g} 个核",
    ),
    "nccl.shared-memory": ("shared memory", "共享内存"),
    "nccl.sockets": ("sockets over {cards}", "经 {cards} 的套接字"),
    "nccl.none": ("no transport available", "没有可用的传输方式"),
    "nccl.do": (
        "processes on several GPUs cannot exchange data: make /dev/shm larger (above)",
        "多个 GPU 的进程无法交换数据：请增大 /dev/shm（见上）",
    ),
    "nccl": ("transports: {transports}", "传输方式：{transports}"),
    "cudnn.missing": (
        "version {version} expected, but there is no libcudnn.so in /opt/venv",
        "应为 {version}，但 /opt/venv 中没有 libcudnn.so",
    ),
    "cudnn.do": (
        "pip install -r /etc/torchkiln/constraints.txt, or start a new container",
        "执行 pip install -r /etc/torchkiln/constraints.txt，或新建容器",
    ),
    "torch.missing": ("missing", "缺失"),
    "torch.changed": ("{name} {found} instead of {version}", "{name} {found}（应为 {version}）"),
    "torch.differs": ("changed since the image was built: {changes}", "与镜像构建时不同：{changes}"),
    "torch.do": (
        "to restore it: pip install -r /etc/torchkiln/constraints.txt",
        "恢复原来的版本：pip install -r /etc/torchkiln/constraints.txt",
    ),
    "torch.guarded": (
        "{version} and its libraries as built; kept by PIP_CONSTRAINT",
        "{version} 及其库与构建时相同；由 PIP_CONSTRAINT 保持不变",
    ),
    "torch.unguarded": (
        "{version} and its libraries as built; PIP_CONSTRAINT is not set",
        "{version} 及其库与构建时相同；未设置 PIP_CONSTRAINT",
    ),
    "compiler.broken": ("cc does not work: {why}", "cc 不能工作：{why}"),
    "compiler.do": (
        "torch.compile and Triton need it; the usual reason is a /tmp mounted noexec",
        "torch.compile 和 Triton 需要它；通常是因为 /tmp 以 noexec 挂载",
    ),
    "files.closed": ("uid {uid} cannot write to {folders}", "uid {uid} 不能写入 {folders}"),
    "files.do": (
        "chown the folder on the host, or run with --user $(id -u):$(id -g)",
        "在主机上对该文件夹执行 chown，或用 --user $(id -u):$(id -g) 运行",
    ),
    "files": ("can write to {folders}", "可以写入 {folders}"),
    "user.no-home": ("not set", "未设置"),
    "user.unknown": ("uid {uid} has no name, home is {home}", "uid {uid} 没有用户名，主目录是 {home}"),
    "user.do": (
        "programs that need a name or a home: run them with /opt/torchkiln/entrypoint COMMAND",
        "需要用户名或主目录的程序：用 /opt/torchkiln/entrypoint COMMAND 执行",
    ),
    "user": ("{name}, uid {uid}, home {home}", "{name}，uid {uid}，主目录 {home}"),
    "services.none": ("none: this container runs a command", "没有：此容器运行的是一条命令"),
    "services.off": ("off", "未启用"),
    "services.running": ("running", "运行中"),
    "services.do": ("see the container's log", "查看容器的日志"),
    "time": ("{now} UTC, zone {zone}", "{now} UTC，时区 {zone}"),
    "time.behind": ("{time}: earlier than the build of this image", "{time}：早于此镜像的构建时间"),
    "time.do": (
        "set the host's clock: TLS connections fail (certificate is not yet valid)",
        "校准主机时钟：否则 TLS 连接会失败（证书尚未生效）",
    ),
    "health.not-ssh": ("port {port}: not an SSH server", "端口 {port}：不是 SSH 服务器"),
    "health.status": ("port {port}: HTTP status {status}", "端口 {port}：HTTP 状态 {status}"),
    "health.error": ("port {port}: {error}", "端口 {port}：{error}"),
    # faults of the driver
    "driver.silent": (
        "the NVIDIA driver did not answer within {limit:.0f} s",
        "NVIDIA 驱动在 {limit:.0f} 秒内没有响应",
    ),
    "driver.silent.do": ("see `dmesg` and `nvidia-smi` on the host", "在主机上查看 `dmesg` 和 `nvidia-smi`"),
    "driver.crashed": ("the NVIDIA driver crashed ({signal})", "NVIDIA 驱动崩溃（{signal}）"),
    "driver.crashed.do": (
        "see `dmesg` on the host; reinstall the driver",
        "在主机上查看 `dmesg`；重新安装驱动",
    ),
    "driver.no-answer": (
        "the NVIDIA driver gave no answer (exit status {status})",
        "NVIDIA 驱动没有返回结果（退出状态 {status}）",
    ),
    "driver.no-answer.do": ("reinstall the driver on the host", "在主机上重新安装驱动"),
    "driver.not-passed": ("no GPU was passed to this container", "没有把 GPU 传给这个容器"),
    "driver.not-passed.do": (
        "add --gpus all, or --device nvidia.com/gpu=all",
        "加上 --gpus all 或 --device nvidia.com/gpu=all",
    ),
    "driver.not-loaded": ("cannot load libcuda.so.1: {error}", "无法加载 libcuda.so.1：{error}"),
    "driver.not-loaded.do": (
        "NVIDIA_DRIVER_CAPABILITIES must include compute; the container toolkit then mounts the library",
        "NVIDIA_DRIVER_CAPABILITIES 必须包含 compute，容器工具包才会挂载这个库",
    ),
    "driver.hidden": (
        "CUDA_VISIBLE_DEVICES={visible} hides the GPUs, or names others: unset it",
        "CUDA_VISIBLE_DEVICES={visible} 隐藏了 GPU，或指定了其他 GPU：请取消设置",
    ),
    "driver.no-device": ("no CUDA-capable device is detected", "没有检测到支持 CUDA 的设备"),
    "driver.no-device.do": (
        "add --gpus all; CUDA_VISIBLE_DEVICES may hide the GPUs",
        "加上 --gpus all；也可能是 CUDA_VISIBLE_DEVICES 隐藏了 GPU",
    ),
    "cuinit": ("cuInit failed: error {code}", "cuInit 失败：错误 {code}"),
    "cuinit.named": ("cuInit failed: error {code}, {name}", "cuInit 失败：错误 {code}，{name}"),
    "cuinit.do": ("see `dmesg` on the host", "在主机上查看 `dmesg`"),
    "cuinit.100": ("no CUDA-capable device is detected", "没有检测到支持 CUDA 的设备"),
    "cuinit.100.do": (
        "start the container with the host's GPUs: --gpus all, or --device nvidia.com/gpu=all",
        "启动容器时传入主机的 GPU：--gpus all 或 --device nvidia.com/gpu=all",
    ),
    "cuinit.101": ("invalid device ordinal", "GPU 编号无效"),
    "cuinit.101.do": (
        "CUDA_VISIBLE_DEVICES names a GPU that does not exist: unset it",
        "CUDA_VISIBLE_DEVICES 指定的 GPU 不存在：请取消设置",
    ),
    "cuinit.222": ("unsupported PTX version", "不支持的 PTX 版本"),
    "cuinit.222.do": (
        "update the driver, or use an image for an older CUDA",
        "升级驱动，或换用 CUDA 版本更低的镜像",
    ),
    "cuinit.802": ("system not yet initialized", "系统尚未初始化"),
    "cuinit.802.do": (
        "start nvidia-fabricmanager on the host, in the driver's version",
        "在主机上启动与驱动版本相同的 nvidia-fabricmanager",
    ),
    "cuinit.803": ("driver and library version mismatch", "驱动与库的版本不一致"),
    "cuinit.803.do": (
        "the driver was updated: reboot the host, or load its new kernel module",
        "驱动升级过：重启主机，或加载新的内核模块",
    ),
    "cuinit.804": ("forward compatibility is not supported on this GPU", "这块 GPU 不支持前向兼容"),
    "cuinit.804.do": (
        "remove the cuda-compat libraries from LD_LIBRARY_PATH",
        "从 LD_LIBRARY_PATH 中去掉 cuda-compat 的库",
    ),
    "cuinit.999": ("unknown error", "未知错误"),
    "cuinit.999.do": (
        "see `dmesg` on the host; nvidia-modprobe or nvidia_uvm may be missing there",
        "在主机上查看 `dmesg`；可能缺少 nvidia-modprobe 或 nvidia_uvm",
    ),
}
