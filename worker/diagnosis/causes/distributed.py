"""Causes of failure: several processes that train together."""

from worker.diagnosis.cause import Cause, Kind, sign
from worker.diagnosis.conditions import between_ranks, unless
from worker.diagnosis.hang_analysis import analyze_hang

_AFTER = Kind.CONSEQUENCE

CAUSES = (
    Cause(
        "nccl_timeout",
        "An NCCL collective timed out: one rank did not join it.",
        (
            sign(r"Watchdog caught collective operation timeout", 0.93, _AFTER),
            sign(
                r"NCCL.*(?:heartbeat monitor|watchdog).*(?:tim(?:ed|e) ?out|hung)|Some NCCL operations have failed or timed out",
                0.8,
                _AFTER,
            ),
        ),
        (
            "Check what the rank named here was doing: a longer batch, an evaluation or a save that the others do not run, a slow disk, a failed GPU.",
            "Every rank must call the same collectives: no early return, no `if rank == 0` around a step, the same number of batches.",
            "If the wait is intended (tokenizing, downloading), do that work before the process group starts, or raise its timeout.",
            "To see where it hangs: TORCH_NCCL_TRACE_BUFFER_SIZE=2000, and py-spy dump on the process.",
        ),
        analyze=analyze_hang,
    ),
    Cause(
        "gloo_timeout",
        "A CPU collective (gloo) timed out: one rank did not join it.",
        (
            sign(r"Timed out waiting \d+ms for (?:recv|send) operation to complete", 0.93, _AFTER),
            sign(r"failed to pass monitoredBarrier in \d+ ms", 0.95, _AFTER),
            sign(r"Wait timeout after \d+ms for keys", 0.9, _AFTER),
        ),
        (
            "Check what the missing rank was doing: a longer batch, a slow disk, a crash of its own.",
            "If the wait is intended, do that work before the process group starts, or raise its timeout.",
        ),
        analyze=analyze_hang,
    ),
    Cause(
        "rendezvous_failed",
        "The processes could not connect to each other at the start.",
        (
            sign(
                r"The client socket has (?:timed out|failed to connect).{0,80}?to [\[(]?(?P<address>[\w.-]{1,100}\]? ?(?:, |:)\d{1,5})",
                0.9,
            ),
            sign(
                r"Timed out initializing process group in store based barrier|RendezvousTimeoutError|DistStoreError: Timed out after \d+ seconds waiting for clients",
                0.93,
            ),
            sign(
                r"DistNetworkError: (?!.*EADDRINUSE)(?!.*[Aa]ddress already in use)(?!failed to (?:recv|send)\b)", 0.7
            ),
            sign(r"RendezvousConnectionError", 0.75, _AFTER),
        ),
        (
            "Start every node with the same --nnodes, --master_addr and --master_port, and check that all of them have started.",
            "Check that the main node's port is reachable from the others (firewall), and that its name resolves to an external address.",
        ),
        explanation="Address: {address}.",
    ),
    Cause(
        "port_in_use",
        "Another program uses the port on which the processes connect.",
        (
            sign(r"(?:server socket has failed to (?:bind|listen)).*?(?::|port: ?|, )(?P<port>\d{2,5})\b.*", 0.96),
            sign(r"EADDRINUSE", 0.93),
            sign(r"[Aa]ddress already in use", 0.93),
            sign(r"Tried to launch distributed communication on port `?(?P<port>\d+)`?, but another process", 0.97),
        ),
        (
            "End the earlier run that still uses the port (ps aux | grep train), or choose another: --master_port 0, or MASTER_PORT.",
        ),
        explanation="Port: {port}.",
    ),
    Cause(
        "nccl_duplicate_gpu",
        "Two ranks use the same GPU.",
        (
            sign(
                r"Duplicate GPU detected ?: rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<device>\w+)",
                0.97,
            ),
        ),
        (
            "Start at most as many processes as there are GPUs (num_processes), and let each use its own: torch.cuda.set_device(local_rank).",
        ),
        explanation="Rank {first} and rank {second} are both on device {device}.",
    ),
    Cause(
        "nccl_failed",
        "NCCL could not set up or use the connection between the GPUs.",
        (
            sign(r"ncclSystemError|unhandled system error|ncclInternalError: Internal check failed", 0.85, _AFTER),
            sign(r"NCCL WARN (?:Call to|Bootstrap|NET/(?!OFI )|Cuda failure|Error while).*", 0.8, _AFTER),
            sign(
                r"(?:DistBackendError|RuntimeError): NCCL error in|^NCCL error in: |ncclUnhandledCudaError",
                0.75,
                _AFTER,
            ),
            sign(r"NCCL error: \w|Failed to load NCCL library from (?P<path>[^\s,]+?)\.? It is expected", 0.8, _AFTER),
            sign(r"NCCL Error \d+: (?:internal error|unhandled|invalid)", 0.8, _AFTER),
        ),
        (
            "Rerun with NCCL_DEBUG=INFO: the line before this one then names the call that failed.",
            "In a container, set --shm-size=8g and --ulimit memlock=-1; select the network with NCCL_SOCKET_IFNAME.",
            "If peer-to-peer or InfiniBand does not work, try NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1.",
        ),
    ),
    Cause(
        "peer_access_failed",
        "The GPUs of this machine cannot access each other's memory.",
        (
            sign(r"peer access is not supported between these two devices|peer mapping resources exhausted", 0.95),
            sign(r"RTX 4000 series doesn't support faster communication", 0.9),
        ),
        ("Start with NCCL_P2P_DISABLE=1 (and NCCL_IB_DISABLE=1): the GPUs then communicate through host memory.",),
    ),
    Cause(
        "peer_lost",
        "A rank lost the connection to a rank that had already ended; this log does not show why.",
        (
            sign(r"Connection closed by peer|Connection reset by (?:remote )?peer", 0.6, _AFTER, when=between_ranks),
            sign(
                r"remote process (?:has )?(?:exited|terminated)|ncclRemoteError|socketProgress: Connection closed",
                0.6,
                _AFTER,
            ),
            sign(r"DistNetworkError: failed to (?:recv|send)\b", 0.6, _AFTER),
            sign(r"recvValue failed on SocketImpl|Broken pipe", 0.5, _AFTER, when=between_ranks),
        ),
        (
            "Read the log of the rank that ended first (torchrun --tee 3 prints all of them), and at `dmesg` of its machine.",
        ),
    ),
    Cause(
        "rank_failed",
        "A training process failed and did not print its error here.",
        (
            sign(
                r"ray\.exceptions\.\w*ActorDiedError|The actor (?:is dead|died)|The actor with name \w+ failed to import on the worker|failed to get register_center_actor|\(raylet\) A worker died or was killed",
                0.6,
                Kind.CONSEQUENCE,
            ),
            sign(
                r"^(?:[\w.]+\.)?ChildFailedError|CalledProcessError: Command .*returned non-zero exit status",
                0.5,
                Kind.SYMPTOM,
            ),
            sign(r"failed \(exitcode: (?P<code>[1-9]\d*)\) local_rank: (?P<local>\d+)", 0.5, Kind.SYMPTOM),
            sign(r"exits with return code = (?P<code>[1-9]\d*)", 0.5, Kind.SYMPTOM),
        ),
        (
            "Rerun with the output of all ranks: torchrun --tee 3 (or --redirects 3 --log-dir LOGS), accelerate launch --tee 3.",
            "Decorate main() with torch.distributed.elastic.multiprocessing.errors.record: the launcher then shows the error.",
        ),
    ),
    Cause(
        "collectives_differ",
        "The ranks called different collectives, or the same one with different tensors.",
        (
            sign(
                r"Detected mismatch between collectives on ranks\. Rank (?P<first>\d+) is running.*?OpType=(?P<one>\w+).*?but Rank (?P<second>\d+) is running.*?OpType=(?P<other>\w+)",
                0.96,
            ),
            sign(r"Detected mismatch between collectives on ranks", 0.95),
            sign(r"Detected a disagreement on list length between rank|Ran into a problem.*ds_id mismatch", 0.85),
        ),
        (
            "Every rank must call the same collectives in the same order: look for a step that depends on the rank or on its own rows.",
            "Give every rank the same number of batches, and tensors of the same shape.",
        ),
        explanation="Rank {first} called {one}, rank {second} {other}.",
    ),
    Cause(
        "libuv_missing",
        "torch for Windows was built without libuv, which torchrun uses by default.",
        (sign(r"use_libuv was requested but PyTorch was buil[dt] without libuv support", 0.98),),
        ("Set the environment variable USE_LIBUV=0 (torch 2.4 to 2.6), or train on Linux or in WSL.",),
    ),
    Cause(
        "ssh_failed",
        "The launcher could not log in to a node with ssh.",
        (
            sign(r"ssh exited with exit code 255|Command 'ssh .*returned non-zero|Host key verification failed", 0.93),
            sign(r"pdsh@\S+: \S+: .*(?:Permission denied|Connection refused)|Permission denied \(publickey", 0.93),
        ),
        (
            "Make `ssh HOST hostname` work without a password for every host of the hostfile (ssh-copy-id).",
            "On one machine start without a hostfile (deepspeed --num_gpus, torchrun): that needs no ssh.",
        ),
    ),
    Cause(
        "data_parallel_unsupported",
        "The model was copied to several GPUs in one process (nn.DataParallel), which this model does not support.",
        (
            sign(r"StopIteration: Caught StopIteration in replica \d+ on device", 0.95),
            sign(r"AttributeError: 'DataParallel' object has no attribute", 0.8),
            sign(r"^\w+Error: .*does not support `?(?:torch\.)?nn\.DataParallel", 0.88),
            sign(
                r"Caught (?:Attribute|Type|Runtime)Error in replica \d+ on device \d+",
                0.6,
                Kind.OUTCOME,
                when=unless(r"CUBLAS_|CUDA error"),
            ),
            sign(
                r"^RuntimeError: (?:chunk expects at least a 1-dimensional tensor|Gather got an input of invalid size|Input tensor at index \d+ has invalid shape|module must have its parameters and buffers on device|All tensors must be on devices\[0\])",
                0.9,
                inside=r"nn/parallel/",
            ),
        ),
        ("Start one process a GPU (accelerate launch or torchrun), or show one GPU only: CUDA_VISIBLE_DEVICES=0.",),
    ),
)
