"""Causes of failure: several processes that train together."""

from worker.cause import Cause, Kind, sign
from worker.hang_look import look_at_hang

_AFTER = Kind.CONSEQUENCE

CAUSES = (
    Cause(
        "nccl_timeout",
        "A collective of NCCL timed out: one rank did not come while the others waited.",
        (
            sign(r"Watchdog caught collective operation timeout", 0.93, _AFTER),
            sign(
                r"NCCL.*(?:heartbeat monitor|watchdog).*(?:tim(?:ed|e) ?out|hung)|Some NCCL operations have failed or timed out",
                0.8,
                _AFTER,
            ),
        ),
        (
            "Look at what the rank named here was doing: a longer batch, an evaluation or a save that the others do not do, a slow disk, a dead GPU.",
            "Every rank has to make the same collectives: no early return, no `if rank == 0` around a step, the same number of batches.",
            "Where the wait is meant (tokenizing, downloading), do that before the process group begins, or raise its timeout.",
            "To see where it hangs: TORCH_NCCL_TRACE_BUFFER_SIZE=2000, and py-spy dump on the process.",
        ),
        look=look_at_hang,
    ),
    Cause(
        "gloo_timeout",
        "A collective between processes on the CPU (gloo) timed out: one rank did not come.",
        (
            sign(r"Timed out waiting \d+ms for (?:recv|send) operation to complete", 0.93, _AFTER),
            sign(r"failed to pass monitoredBarrier in \d+ ms", 0.95, _AFTER),
            sign(r"Wait timeout after \d+ms for keys", 0.9, _AFTER),
        ),
        (
            "Look at what the missing rank was doing: a longer batch, a slow disk, a crash of its own.",
            "Where the wait is meant, do that work before the process group begins, or raise its timeout.",
        ),
        look=look_at_hang,
    ),
    Cause(
        "rendezvous_failed",
        "The processes did not find each other at the start.",
        (
            sign(
                r"The client socket has (?:timed out|failed to connect).{0,80}?to [\[(]?(?P<address>[\w.-]{1,100}\]?(?:, |:)\d{1,5})",
                0.9,
            ),
            sign(
                r"RendezvousTimeoutError|RendezvousConnectionError|DistStoreError: Timed out after \d+ seconds waiting for clients",
                0.93,
            ),
            sign(r"DistNetworkError: (?!.*EADDRINUSE)(?!.*[Aa]ddress already in use)", 0.7),
        ),
        (
            "Start every node with the same --nnodes, --master_addr and --master_port, and see that all of them have begun.",
            "See that the main node's port is reachable from the others (firewall), and that its name resolves to an outer address.",
        ),
        told="The address was {address}.",
    ),
    Cause(
        "port_in_use",
        "The port that the processes meet at is taken by another program.",
        (
            sign(r"(?:server socket has failed to (?:bind|listen)).*?(?::|port: ?|, )(?P<port>\d{2,5})\b.*", 0.96),
            sign(r"EADDRINUSE", 0.93),
            sign(r"[Aa]ddress already in use", 0.93),
        ),
        (
            "End the earlier run that still holds the port (ps aux | grep train), or choose another: --master_port 0, or MASTER_PORT.",
        ),
        told="It is port {port}.",
    ),
    Cause(
        "nccl_duplicate_gpu",
        "Two ranks were put on the same GPU.",
        (
            sign(
                r"Duplicate GPU detected ?: rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<device>\w+)",
                0.97,
            ),
        ),
        (
            "Start at most as many processes as there are GPUs (num_processes), and let each take its own: torch.cuda.set_device(local_rank).",
        ),
        told="Rank {first} and rank {second} are both on device {device}.",
    ),
    Cause(
        "nccl_failed",
        "NCCL could not set up or use the connection between the GPUs.",
        (
            sign(r"ncclSystemError: System call .*failed|ncclInternalError: Internal check failed", 0.85, _AFTER),
            sign(r"NCCL WARN (?:Call to|Bootstrap|NET/|Cuda failure|Error while).*", 0.8, _AFTER),
            sign(r"DistBackendError: NCCL error in|ncclUnhandledCudaError", 0.75, _AFTER),
        ),
        (
            "Start again with NCCL_DEBUG=INFO: the line before this one then names the call that failed.",
            "In a container give shared memory (--shm-size=8g) and --ulimit memlock=-1; name the network by NCCL_SOCKET_IFNAME.",
            "Where peer-to-peer or InfiniBand is broken, try NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1.",
        ),
    ),
    Cause(
        "peer_access_failed",
        "GPUs of this machine cannot reach each other's memory as they were told to.",
        (
            sign(r"peer access is not supported between these two devices|peer mapping resources exhausted", 0.95),
            sign(r"RTX 4000 series doesn't support faster communication", 0.9),
        ),
        ("Start with NCCL_P2P_DISABLE=1 (and NCCL_IB_DISABLE=1): the GPUs then talk through host memory.",),
    ),
    Cause(
        "peer_lost",
        "A rank lost the connection to another one, which had ended before; why it ended is not in this log.",
        (
            sign(r"Connection closed by peer|Connection reset by (?:remote )?peer", 0.6, _AFTER),
            sign(
                r"remote process (?:has )?(?:exited|terminated)|ncclRemoteError|socketProgress: Connection closed",
                0.6,
                _AFTER,
            ),
            sign(r"recvValue failed on SocketImpl|Broken pipe", 0.5, _AFTER),
        ),
        (
            "Look at the log of the rank that ended first (torchrun --tee 3 prints all of them), and at `dmesg` of its machine.",
        ),
    ),
    Cause(
        "rank_failed",
        "A training process ended with an error that it did not print here.",
        (
            sign(r"failed \(exitcode: (?P<code>[1-9]\d*)\) local_rank: (?P<local>\d+)", 0.5, Kind.SYMPTOM),
            sign(r"exits with return code = (?P<code>[1-9]\d*)", 0.5, Kind.SYMPTOM),
        ),
        (
            "Start again with the output of all ranks: torchrun --tee 3 (or --redirects 3 --log-dir LOGS), accelerate launch --tee 3.",
            "Put torch.distributed.elastic.multiprocessing.errors.record above main(): the launcher then shows the error.",
        ),
    ),
    Cause(
        "collectives_differ",
        "The ranks called different collectives, or the same with different tensors.",
        (
            sign(
                r"Detected mismatch between collectives on ranks\. Rank (?P<first>\d+) is running.*?OpType=(?P<one>\w+).*?but Rank (?P<second>\d+) is running.*?OpType=(?P<other>\w+)",
                0.96,
            ),
            sign(r"Detected mismatch between collectives on ranks", 0.95),
        ),
        (
            "Every rank has to make the same collectives in the same order: look for a step that depends on the rank or on its own rows.",
            "Give every rank the same number of batches, and tensors of the same shape.",
        ),
        told="Rank {first} called {one}, rank {second} {other}.",
    ),
    Cause(
        "parameters_unused",
        "DDP waited for gradients of weights that took no part in the loss.",
        (sign(r"Expected to have finished reduction in the prior iteration before starting a new one", 0.97),),
        (
            "Set find_unused_parameters=True (ddp_find_unused_parameters), or freeze the weights that are not used.",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL names them.",
        ),
    ),
    Cause(
        "parameter_ready_twice",
        "DDP was given the gradient of a weight twice in one backward pass.",
        (sign(r"Expected to mark a variable ready only once", 0.97),),
        (
            "With gradient checkpointing set use_reentrant=False (gradient_checkpointing_kwargs), and find_unused_parameters=False.",
            "Where layers share weights, use DDP's static_graph=True.",
        ),
    ),
    Cause(
        "devices_mixed",
        "Tensors of one operation are on different devices.",
        (
            sign(
                r"Expected all tensors to be on the same device, but (?:found at least two devices, (?P<first>[\w:]+) and (?P<second>[\w:]+)|.*)!?",
                0.96,
            ),
            sign(
                r"tensors? (?:is|are) on (?:a )?different devices?|should be on the same device|Tensor on device \S+ is not on the expected device",
                0.85,
            ),
        ),
        (
            "Where the model was spread over GPUs by device_map=\"auto\", train it in one process, or load it whole on each rank's own GPU (device_map={'': local_rank}).",
            "Move the batch to the model's device, and put on the device what is made inside forward.",
        ),
        told="One is on {first}, another on {second}.",
    ),
    Cause(
        "fsdp_device_mismatch",
        "FSDP found the model on another GPU than the rank's own.",
        (
            sign(
                r"Inconsistent compute_device and device_id: (?P<first>\S+) vs (?P<second>\S+)|Inconsistent compute device and `device_id`",
                0.97,
            ),
        ),
        (
            'Do not load a model for FSDP with device_map="auto" or quantised by default: that puts all of it on the first GPU.',
            "Call torch.cuda.set_device(local_rank) before the model is made. For 4 bits use one process, DDP or ZeRO-2.",
        ),
        changes={"method": "lora", "quantization": "none"},
    ),
)
