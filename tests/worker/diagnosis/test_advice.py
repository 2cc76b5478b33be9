"""Advice agrees with its own log: the phase, the numbers in the message, and what the batch contained."""

from paths import TESTS
from subtest_table import table

from worker.diagnosis.diagnosis import diagnose

NO_LOSS = "ValueError: The model did not return a loss from the inputs, only the following keys: logits. "
RECEIVED = "For reference, the inputs it received are input_ids,attention_mask"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.94 GiB."


def traceback(function, code, error):
    """A traceback of one frame."""
    return f'Traceback (most recent call last):\n  File "/v/transformers/trainer.py", line 9, in {function}\n    {code}\n{error}\n'


@table(
    ("log", "cause", "advice", "not_advised"),
    [
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "cuda_out_of_memory", "Raise gpu_memory_utilization", "micro_batch_size",
        ),
        (
            "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV "
            "cache (52832).",
            "cuda_out_of_memory", "to at most 52832", "micro_batch_size",
        ),
        (
            "ValueError: Free memory on device (11.2/79.15 GiB) on startup is less than desired GPU memory utilization (0.9, "
            "71.24 GiB).",
            "cuda_out_of_memory", "Only 11.2 of 79.15 GiB are free", "micro_batch_size",
        ),
        (NO_LOSS + RECEIVED + ",labels.", "loss_missing", "The batch has labels", "The batch has no labels"),
        (NO_LOSS + RECEIVED + ".", "loss_missing", "The batch has no labels", "The batch has labels"),
        (
            traceback("evaluation_loop", "logits = self.accelerator.pad_across_processes(logits)", OUT_OF_MEMORY),
            "cuda_out_of_memory", "per_device_eval_batch_size", "gradient_accumulation_steps",
        ),
        (
            traceback("prediction_step", "self.model.generate(**inputs)", OUT_OF_MEMORY),
            "cuda_out_of_memory", "max_new_tokens", "zero3",
        ),
        (
            traceback("save_checkpoint", "model.state_dict()", OUT_OF_MEMORY),
            "cuda_out_of_memory", "SHARDED_STATE_DICT", "micro_batch_size",
        ),
        (
            "ptxas /tmp/x, line 3; error   : Feature '.bf16' requires .target sm_80 or higher\n"
            "RuntimeError: Internal Triton PTX codegen error: ",
            "triton_compile_failed", "older than sm_80", "Install the triton",
        ),
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.",
            "triton_compile_failed", "needs 147456 bytes", "Install the triton",
        ),
        (
            "n1:1:1 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
            "nccl_failed", "NCCL_IB_GID_INDEX", "HF_HOME",
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:12345: Network is "
            "unreachable",
            "rendezvous_failed", "GLOO_SOCKET_IFNAME", "HF_HOME",
        ),
        (
            "[W socket.cpp:601] [c10d] The IPv6 network addresses of (node1, 29500) cannot be retrieved (gai error: -2 - Name or "
            "service not known).",
            "rendezvous_failed", "resolves to an external address", "HF_HOME",
        ),
        (
            "IndexError: Invalid key: 25030 is out of bounds for size 0",
            "data_empty", "remove_unused_columns=False", "dmesg",
        ),
        ("IndexError: Invalid key: 0 is out of bounds for size 0", "data_empty", "what the filters", "remove_unused_columns"),
        (
            "RuntimeError: MPS backend out of memory (MPS allocated: 17.20 GB, other allocations: 1.02 GB, max allowed: 18.13 GB). "
            "Tried to allocate 512.00 MB on private pool.",
            "cuda_out_of_memory", "a Mac has one memory", "zero3",
        ),
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.",
            "cuda_out_of_memory", "over more devices", "zero3",
        ),
        (
            "OSError: [WinError 1455] The paging file is too small for this operation to complete.",
            "host_out_of_memory", "Enlarge the paging file", "dmesg",
        ),
        (
            "omegaconf.errors.MissingMandatoryValue: Missing mandatory value: data.train_files",
            "settings_invalid", "data.train_files=VALUE", "lines below",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for RunConfig\nmicro_batch\n  Input should be a "
            "valid integer [type=int_from_float, input_value=0.5]",
            "settings_invalid", "Correct micro_batch in the configuration: Input should be a valid integer.", "dmesg",
        ),
        (
            "RuntimeError: Cannot find valid samples, check `data/README.md` for the data format.",
            "data_empty", "roles do not alternate", "the split leave",
        ),
        (
            'Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n  File "/v/xformers/ops.py", '
            "line 311 in apply",
            "segmentation_fault", "/v/xformers/ops.py (line 311)", "PYTHONFAULTHANDLER",
        ),
        (
            "/usr/include/c++/11/bits/std_function.h:435:145: error: parameter packs not expanded with '...':\n"
            "RuntimeError: Error building extension 'cpu_adam'",
            "deepspeed_build_failed", "g++ 10", "ds_report",
        ),
        (
            "TypeError: _unsloth_get_batch_samples() takes 3 positional arguments but 4 were given",
            "package_incompatible", "unsloth_zoo", "flash-attn",
        ),
        (
            "RuntimeError: Multiple errors: [Exception('Server 0 failed: 500, Internal Server Error')]",
            "generation_server_lost", "answered 500", "vllm_server_port",
        ),
        (
            traceback("__init__", "if not 0.0 <= lr:", "TypeError: '<=' not supported between instances of 'float' and 'str'")
            .replace("transformers/trainer.py", "torch/optim/adamw.py"),
            "settings_invalid", "no decimal point", "lines below",
        ),
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            "container_not_started", "nvidia-container-toolkit", "--gpus all",
        ),
        ("The node was low on resource: ephemeral-storage.", "disk_full", "Mount a volume", "df -h"),
        (
            "OSError: [Errno 107] Transport endpoint is not connected: '/content/drive/MyDrive/out'",
            "storage_failed", "drive.mount", "dmesg",
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
            "host_out_of_memory", "--mem (for a node)", "dmesg",
        ),
        ("    Reason:       OOMKilled\n    Exit Code:    137", "host_out_of_memory", "resources.limits.memory", "dmesg"),
        (
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO NODE FAILURE ***\n"
            "srun: error: Node failure on n1",
            "time_limit", "A node failed, not the job", "more time",
        ),
        (
            "sbatch: error: QOSMaxGRESPerUser\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy",
            "scheduler_refused", "has a limit that this job exceeds (QOSMaxGRESPerUser)", "sinfo",
        ),
        (
            "srun: error: Unable to create step for job 7: Memory required by task is not available",
            "scheduler_refused", "--mem=0 takes all", "sinfo",
        ),
        (
            "ValueError: At most one of fp16 and bf16 can be True, but not both",
            "settings_invalid", "Keep one of the two", "lines below",
        ),
        (
            "pyarrow.lib.ArrowInvalid: JSON parse error: Column(/score) changed from number to string in row 31",
            "data_not_consistent", "it is number in those before, and string in row 31", "Give each column one type",
        ),
        (
            traceback("batch", "row['reply']", "KeyError: 'reply'").replace("transformers/trainer", "datasets/arrow_dataset"),
            "dataset_column_missing", "No column is named reply", "{column}",
        ),
        (
            "ImportError: cannot import name 'gone' from 'transformers.utils' (/v/site-packages/transformers/utils/__init__.py)",
            "package_incompatible", "transformers.utils is installed in a version that has no gone", "{name}",
        ),
        ("ModuleNotFoundError: No module named 'soundfile'", "package_missing", "Install soundfile", "{package}"),
        (
            "RuntimeError: TensorBoardCallback requires tensorboard to be installed. Either update or install tensorboardX.",
            "package_missing", "Install tensorboard in the environment that trains, or set report_to to none", "protobuf",
        ),
        (
            "Failed to initialize NVML: Unknown Error\n" + traceback("main", "cuda()", "RuntimeError: No CUDA GPUs are available"),
            "gpu_not_found", "the container has lost its GPUs", "built with CUDA",
        ),
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.9, please update your driver: unknown.",
            "driver_too_old", "needs a driver for CUDA 12.9", "pip install torch",
        ),
        (
            "torch.AcceleratorError: CUDA error: unspecified launch failure\n"
            "Unable to determine the device handle for GPU0: 0000:B1:00.0: Unknown Error",
            "gpu_hardware", "Take the GPU out of use", "CUDA_LAUNCH_BLOCKING",
        ),
        (
            "/v/main.c:4:10: fatal error: Python.h: No such file or directory",
            "compiler_missing", "python3-dev", "gcc, g++",
        ),
        (
            "torch._dynamo.exc.FailOnRecompileLimitHit: recompile_limit reached with fullgraph=True.",
            "triton_compile_failed", "for each new shape", "reinstall torch",
        ),
        (
            "      FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'\n"
            "error: metadata-generation-failed",
            "extension_build_failed", "nvcc is missing", "offload",
        ),
        (
            "requests.exceptions.SSLError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries "
            "exceeded (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed')))\"))",
            "network_unreachable", "REQUESTS_CA_BUNDLE", "HF_ENDPOINT",
        ),
        (
            traceback("matmul_4bit", "assert quant_state is not None", "AssertionError")
            .replace("transformers/trainer.py", "bitsandbytes/autograd/_functions.py"),
            "quantized_device_move", "The 4-bit weights were never quantized", ".cuda()",
        ),
        (
            "Error invalid configuration argument at line 119 in file /src/csrc/ops.cu",
            "bitsandbytes_without_gpu", "under ZeRO-3 and FSDP use an optimizer without it", "LD_LIBRARY_PATH",
        ),
        (
            "Could not load library libcudnn_cnn_train.so.8. Error: undefined symbol: x, version libcudnn_cnn_infer.so.8",
            "cudnn_mismatch", "libcudnn_cnn_train was found in another version", "Nearly full",
        ),
        (
            "python: /v/deepspeed/ops/csrc/aio/py_lib/handle.cpp:223: int handle_t::wait(): Assertion `pending > 0' failed.",
            "segmentation_fault", "without nvme_path", "PYTHONFAULTHANDLER",
        ),
        (
            traceback("_move", "engine.model_executor", "AttributeError: 'LLMEngine' object has no attribute 'model_executor'")
            .replace("transformers", "site-packages/trl"),
            "package_incompatible", "(LLMEngine.model_executor)", "flash-attn",
        ),
        ("AssertionError: {'id': 1, 'status': 'NOT_AVAILABLE'}", "zero3_parameter_not_gathered", "set_z3_leaf_modules", "resize"),
        (
            "\n".join(
                f"[rank{rank}]:[E1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
                f"SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600000 milliseconds before timing out."
                for rank in range(2)
            ),
            "nccl_timeout", "NCCL_P2P_DISABLE", "rank named here",
        ),
        (
            "Warning  FailedScheduling  9s  default-scheduler  0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption",
            "scheduler_refused", "No node fits the pod (0/3 nodes are available: 3 Insufficient nvidia.com/gpu)", "sinfo",
        ),
        (
            'docker: Error response from daemon: Conflict. The container name "/t" is already in use by container "1c9f".',
            "container_not_started", "docker rm t", "imagePullSecrets",
        ),
        (
            "ValueError: LoRA rank 32 is greater than max_lora_rank 16.",
            "settings_invalid", "start it with --max-lora-rank 32", "The message names",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, Total number of "
            "attention heads (14) must be divisible by tensor parallel size (4). [type=value_error]",
            "not_divisible", "Attention heads", "VllmConfig",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for EngineConfig\n  Value error, a and b exclude "
            "each other [type=value_error]",
            "settings_invalid", "Values of EngineConfig do not go together: a and b exclude each other", "PROGRAM --help",
        ),
        (
            "yaml.scanner.ScannerError: while scanning for the next token\nfound a tab\n  in \"run.yaml\", line 7, column 1",
            "settings_invalid", "run.yaml is no valid YAML at line 7", "PROGRAM --help",
        ),
        (
            "Could not override 'trainer.epochs'.\nKey 'epochs' is not in struct",
            "settings_unknown", "write +trainer.epochs=VALUE", "train_bash",
        ),
        (
            "n1:1:1 [2] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl to 330 bytes, error: No space left on "
            "device (28)\ntorch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled system error",
            "shared_memory_full", "--shm-size", "save_total_limit",
        ),
        (
            "RuntimeError: Data processing error: CAS service error : Reqwest Error: HTTP status server error (503)",
            "network_unreachable", "HF_HUB_DISABLE_XET=1", "HF_ENDPOINT",
        ),
        (
            "ValueError: Error occurred while packing the dataset. Make sure that your dataset has enough samples.",
            "data_empty", "packing none", "the split leave",
        ),
        ("TypeError: BFloat16 is not supported on MPS", "bf16_unsupported", "Set precision to fp32", "V100"),
        ("ImportError: numpy.core.multiarray failed to import", "package_incompatible", "pip install 'numpy<2'", "flash-attn"),
        (
            "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit the model.",
            "cuda_out_of_memory", "The model does not fit on the GPU", "Halve micro_batch_size",
        ),
        (
            "ValueError: Unknown split \"dev\". Should be one of ['train', 'test'].",
            "settings_invalid", "give one of ['train', 'test'] (split=", "PROGRAM --help",
        ),
        (
            "ValueError: You passed a collator for answers. This is not compatible with the packing argument.",
            "settings_invalid", "exclude each other, one of them packing", "PROGRAM --help",
        ),
        (
            "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
            "rank_failed", "/tmp/ray/session_latest/logs", "torchrun",
        ),
        (
            "n2:8:14 [4] transport/net_ib.cc:1061 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<5> with status=12 opcode=0",
            "nccl_failed", "(status 12;", "--shm-size",
        ),
        (
            "[rank0]:[F1 ProcessGroupNCCL.cpp:1557] [Rank 0] Terminating the process after attempting to dump debug info, due to "
            "ProcessGroupNCCL watchdog hang.",
            "nccl_timeout", "py-spy dump", "torchrun",
        ),
        (
            "ImportError: /v/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2E",
            "package_incompatible", "flash_attn_2_cuda was built for another torch", "{module}",
        ),
        (
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
            "package_incompatible", "libcudart.so.12 is not found", "If the script is older",
        ),
        ("ERROR: ResolutionImpossible: for help visit the page", "package_incompatible", "depends on", "flash-attn"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'out/trainer_state.json'",
            "checkpoint_not_found", "Give a checkpoint-N folder", "several machines",
        ),
        (
            "KeyError: \"param 'initial_lr' is not specified in param_groups[0] when resuming an optimizer\"",
            "optimizer_state_mismatch", "made with last_epoch", "modules to save",
        ),
        (
            "RuntimeError: TPU initialization failed: open(/dev/accel0): Device or resource busy",
            "gpu_busy", "/tmp/libtpu_lockfile", "nvidia-smi",
        ),
        ("ValueError: too many dimensions 'str'", "rows_of_unequal_length", "A column of text is left", "DataCollatorForSeq2Seq"),
        (
            "ValueError: Expected input batch_size (124) to match target batch_size (0).",
            "label_out_of_range", "has 124 predictions and the batch 0 labels", "padding id",
        ),
        (
            "ValueError: Invalid task type: 'CAUSAL'. Must be one of the following task types: SEQ_CLS, CAUSAL_LM.",
            "settings_invalid", "Set task type to one of SEQ_CLS, CAUSAL_LM (now 'CAUSAL').", "PROGRAM --help",
        ),
        (
            "ValueError: While loading /v/adapter, expected target modules in ['q_proj'] but received ['lm_head'].",
            "target_modules_missing", "merge the adapter", "all-linear",
        ),
        (
            "ImportError: You need to install `bitsandbytes` in order to use its optimizers: `pip install -U bitsandbytes`",
            "package_missing", "Install bitsandbytes in the environment", "{package}",
        ),
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the files, and outgoing traffic has been disabled.",
            "network_unreachable", "Downloads are switched off", "HTTPS_PROXY",
        ),
        (
            "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
            "triton_compile_failed", "ptxas does not know sm_121a", "remove the caches",
        ),
        (
            "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
            "cuda_version_mismatch", "does not know compute_120", "DS_SKIP_CUDA_CHECK",
        ),
        (
            "RuntimeError: The server socket has failed to bind to [::]:29731 (errno: 98 - Address already in use).",
            "port_in_use", "`ss -ltnp | grep 29731`", "ps aux",
        ),
        (
            "All the data files must have the same columns, but at some point there are 1 new columns ({'score'})\n\n"
            "This happened while the json dataset builder was generating data using\n\n/d/part-2.jsonl\n\nPlease edit",
            "data_not_consistent", "The file /d/part-2.jsonl has other columns than those before: 1 new columns ({'score'}).",
            "Give each column one type",
        ),
        (
            "TypeError: Couldn't cast array of type string to null",
            "data_not_consistent", "A column is null in the first rows", "the same columns",
        ),
        (
            "ValueError: Due to a serious vulnerability issue in `torch.load`, even with `weights_only=True`, require torch v2.6",
            "unsafe_pickle", "Install torch 2.6 or newer", "weights_only=False",
        ),
        (
            traceback("_load_rng_state", "torch.load(rng_file)", "_pickle.UnpicklingError: Weights only load failed."),
            "unsafe_pickle", "delete rng_state*.pth", "Convert weights to safetensors",
        ),
        (
            "n1:2:3 [0] misc/ibvwrap.cc:123 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
            "nccl_failed", "ulimit -l unlimited", "NCCL_IB_GID_INDEX",
        ),
        (
            "RuntimeError: NCCL error: invalid usage (ncclCommRegister)",
            "nccl_failed", "NCCL_LOCAL_REGISTER=0", "shm-size",
        ),
        (
            traceback("from_peft_type", "return config_cls(**kwargs)",
                "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'new_method'")
            .replace("/v/transformers/trainer.py", "/v/site-packages/peft/config.py"),
            "package_incompatible", "remove new_method from adapter_config.json", "flash-attn",
        ),
        (
            "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'new_method'",
            "package_incompatible", "pip install -U peft", "flash-attn",
        ),
        (
            "KeyError: 'SLURM_JOB_GPUS'",
            "launcher_environment_missing", "SLURM_JOB_GPUS is not set: start the program in a job", "notebook",
        ),
        ("KeyError: 'LOCAL_RANK'", "launcher_environment_missing", "torchrun --nproc_per_node", "srun"),
        (
            'Thread 7 (idle): "MainThread"\n    acquire (filelock/_api.py:344)\n    load_dataset (datasets/load.py:2084)',
            "process_hangs", "`fuser -v FILE.lock`", "NCCL",
        ),
        (
            'Thread 7 (active): "MainThread"\n    _wait (select.py:415)\n    _try_get_data (torch/utils/data/dataloader.py:1251)',
            "process_hangs", "dataloader_num_workers 0", "NCCL",
        ),
        (
            "ZeroDivisionError: Unsloth: All labels in your dataset are -100. Training losses will be all 0.",
            "labels_all_masked", "response_part must be exactly the text", "DataCollatorForCompletionOnlyLM",
        ),
        (
            traceback("update", "self._post(url)", "Exception: Request failed: 500, out of memory").replace(
                "transformers/trainer", "trl/extras/vllm_client"),
            "generation_server_lost", "answered 500", "vllm_server_port",
        ),
        (
            "AttributeError: 'UnslothDPOConfig' object has no attribute 'padding_free'",
            "package_incompatible", "unsloth_zoo", "flash-attn",
        ),
        ("RuntimeError: Unsloth: Failed to create dynamic compiled modules!", "package_incompatible", "UNSLOTH_COMPILE", "PROGRAM"),
        (
            "TypeError: KTOTrainer.log() takes 2 positional arguments but 3 were given",
            "package_incompatible", "transformers calls KTOTrainer.log", "flash-attn",
        ),
        ("AttributeError: 'NoneType' object has no attribute 'attn_bias'", "package_missing", "xformers", "sentencepiece"),
        ("ModuleNotFoundError: No module named 'flash_attn_2_cuda'", "flash_attention_missing", "install flash-attn", "{"),
        ("ModuleNotFoundError: No module named 'cv2'", "package_missing", "Install it: pip install opencv-python.", "torchrun"),
        ("ImportError: No module named swift.llm", "package_missing", "pip install ms-swift", "torchrun"),
        ("RuntimeError: PassManager::run failed", "triton_compile_failed", "T4, V100", "remove the caches"),
        (
            traceback("defragment", "assert len(set(t.dtype for t in tensors)) == 1", "AssertionError").replace(
                "transformers/trainer", "deepspeed/runtime/zero/stage3"),
            "dtype_mismatch", "ZeRO-3 was given weights of different dtypes", "own code",
        ),
        (
            "RuntimeError: The tensor has a non-zero number of elements, but its data is not allocated yet.",
            "zero3_parameter_not_gathered", "summon_full_params", "resize",
        ),
        (
            "RuntimeError: shape '[1, 1, 2, 3, 17, 2, 16, 12, 2, 16]' is invalid for input of size 1317120",
            "image_tokens_mismatch", "multiple of patch size", "max_length",
        ),
        (
            "ValueError: held-out split is too small for packing. You should set `eval_packing: False`.",
            "settings_invalid", "what to set: held-out split is too small for packing. You should set `eval_packing: False`.",
            "The message names",
        ),
        (
            "RuntimeError: world_size (8) is not equal to tensor_model_parallel_size (2) x pipeline_model_parallel_size (1)",
            "settings_invalid", "equals the world size", "The message names",
        ),
        (
            "ValueError: remaining_argv: ['\\\\', '\\\\']",
            "settings_unknown", "in the Command Prompt of Windows it is ^", "PROGRAM",
        ),
        (
            "AssertionError: rollout world_size: 1 is not divisible by infer_tp: 2",
            "not_divisible", "The number of GPUs must be a multiple of the parallel size", "Attention heads",
        ),
        (
            "AssertionError: FSDP assumes layers.0.weight is in the state_dict but the state_dict only has odict_keys([])",
            "state_dict_keys", "_orig_mod", "checkpoint-N",
        ),
        (
            "RuntimeError: Worker failed with error '', please check the stack trace above for the root cause",
            "rank_failed", "lines with ERROR of EngineCore or Worker", "torchrun",
        ),
        (
            "OSError: /data/out does not appear to have a file named config.json. Checkout 'https://huggingface.co/x' for files.",
            "file_missing", "If /data/out contains adapter_config.json, it is an adapter", "docker",
        ),
        (
            "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/base'. Use `repo_type`.",
            "model_not_found", "/models/base was taken for a name on the hub", "HF_TOKEN",
        ),
        ("KeyError: '\\ufeff2'", "text_encoding", "utf-8-sig", "PYTHONUTF8"),
        (
            "ValueError: Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)",
            "devices_mixed", "wake_up after sleep", "device_map=\"auto\"",
        ),
        (
            traceback("loss", "x = model(x)[2]", "ValueError: not enough values to unpack (expected 3, got 2)").replace(
                "/v/transformers/trainer", "/w/LLaMA-Factory/src/llamafactory/train/sft/trainer"),
            "error_in_own_code", "The file belongs to llamafactory", "pip install -U",
        ),
        (
            traceback("inject", "config = configs[name]", "KeyError: 'reward'").replace("/v/", "/v/site-packages/"),
            "error_in_package", "Update transformers", "Correct",
        ),
        (
            "AttributeError: 'TrainerState' object has no attribute 'last_checkpoint'. Did you mean: 'best_checkpoint'?",
            "package_incompatible", "TrainerState has no last_checkpoint in the installed version", "flash-attn",
        ),
        (
            "AttributeError: 'OSError' object has no attribute 'choices'",
            "package_incompatible", "A request failed with OSError", "flash-attn",
        ),
        (
            "TypeError: TorchaoLoraLinear.__init__() missing 1 required keyword-only argument: 'get_subclass'",
            "package_incompatible", "TorchaoLoraLinear asks for get_subclass", "flash-attn",
        ),
        (
            "TypeError: Linear.forward() got an unexpected keyword argument 'scale'",
            "package_incompatible", "Install matching versions", "own",
        ),
        (
            traceback("train", "assert args.batch_size % len(devices) == 0", "AssertionError").replace("/v/transformers/", "/opt/"),
            "not_divisible", "tests whether one number is a multiple of another", "Attention heads",
        ),
        (
            "AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.",
            "not_divisible", "A batch of 512 rows cannot be split over 6 workers", "Attention heads",
        ),
        (
            "AssertionError: Total batch size (2) must be divisible by the number of gpus (4)",
            "not_divisible", "Set the batch size to a multiple of the number of GPUs", "Attention heads",
        ),
        (
            traceback("build", "assert args.train_samples is None, \\", "AssertionError: only for training by iterations").replace(
                "/v/transformers/", "/w/Megatron-LM/megatron/"),
            "settings_invalid", "they do not fit: only for training by iterations", "own code",
        ),
        ("    assert names[0] is not None\nAssertionError", "settings_invalid", "`names[0] is not None` must", "The message"),
        (
            "AssertionError: Two tensor dict must have identical batch size. Got torch.Size([1024]) and torch.Size([4096])",
            "settings_invalid", "rollout n, num_generations", "The message names",
        ),
        (
            "ValueError: batch_size should be a positive integer value, but got batch_size=0",
            "settings_invalid", "The batch size of a process is 0", "The message names",
        ),
        (
            traceback("main", "assert batch_size * n < len(dataset)", "AssertionError").replace("/v/transformers/", "/opt/"),
            "data_empty", "lower the batch size", "the split leave",
        ),
        (
            traceback("launch", "raise RuntimeError(text)", "RuntimeError: Step 1 exited with non-zero status 249").replace(
                "/v/transformers/", "/opt/"),
            "rank_failed", "ended with code 249", "torchrun",
        ),
        (
            "Failed to load model: llama-server failed to start. Check that the GGUF file is valid and you have enough memory.",
            "generation_server_lost", "llama-server -m FILE.gguf", "trl vllm-serve",
        ),
        (
            "[/usr/lib/python3/dist-packages/unsloth/save.py](https://localhost:8080/#) in save_to_gguf(model_type, method)\n"
            "    936     else:\n--> 937         raise RuntimeError(\n    938             text\n\n"
            "RuntimeError: Unsloth: `first` can only be one of ['f16', 'q8_0'] and not `f16`.",
            "gguf_export_failed", "delete the folder llama.cpp", "qweight",
        ),
        (
            traceback("load_state", 'self.step = override["step"]', "KeyError: 'step'").replace(
                "/v/transformers/trainer", "/v/site-packages/accelerate/accelerator"),
            "checkpoint_not_found", "Resume with the version of the library that wrote it", "trainer_state.json",
        ),
        ("ValueError: Expected a cuda device, but got: cpu", "devices_mixed", "device_map", "torchrun"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'",
            "deepspeed_build_failed", "pip uninstall deepspeed", "ds_report",
        ),
        (
            "(EngineCore_DP0 pid=9) ERROR 10-13 09:46:06 [core.py:708] " + OUT_OF_MEMORY,
            "cuda_out_of_memory", "Lower gpu_memory_utilization of vLLM", "micro_batch_size",
        ),
        (
            'E0217 11:46:53.823175  1 dataset.go:88] "failed" err="cannot create hf_cache: mkdir hf_cache: permission denied"',
            "permission_denied", "read and write hf_cache", "{path}",
        ),
        (
            "05/30 18:04:29 - mmengine - WARNING - WARNING: command error: '[Errno 2] No such file or directory: '/d/a.md''!",
            "file_missing", "Check the path", "permission",
        ),
        (
            'OCI runtime create failed: chdir to cwd ("/workspace") set in config.json failed: permission denied',
            "container_not_started", "may not enter its working folder /workspace (permission denied)", "chmod +x",
        ),
        (
            "/bin/run: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file: No such",
            "package_incompatible", "The program needs libpython3.11.so.1.0", "flash-attn",
        ),
        (
            "WARNING: tokenization mismatch: 69 vs. 70. #turn = 1. (ignored)\n{'loss': 0.0, 'grad_norm': 0.0, 'epoch': 0.0}",
            "labels_all_masked", "conversation template", "DataCollatorForCompletionOnlyLM",
        ),
        (
            "CUDA SETUP: Defaulting to libbitsandbytes_cpu.so...\nargument of type 'WindowsPath' is not iterable",
            "bitsandbytes_without_gpu", "none for Windows", "ZeRO-3",
        ),
        ("*** An error occurred in MPI_Init_thread", "scheduler_refused", "srun --mpi=pmix", "sinfo"),
        (
            "RuntimeError: Request failed with status code 500: No available agent to submit job, please try again later..",
            "scheduler_refused", "ray[default]", "code 500",
        ),
        (
            "Not implemented or built, mostly likely because the current current device does not support this kernel\n"
            "RuntimeError: Engine process failed",
            "no_kernel_image", "choose another kernel", "HSA_OVERRIDE",
        ),
        (
            "ValueError: Tokenizer class LLaMATokenizer does not exist or is not currently imported.",
            "model_type_unknown", "names the class LLaMATokenizer", "model_type",
        ),
        (
            "AttributeError: 'AutoModelForCausalLMWithValueHead' object has no attribute 'base_model_prefix'",
            "package_incompatible", "AutoModelForSequenceClassification", "flash-attn",
        ),
        (
            traceback("forward", "logits, _ = model(x)", "ValueError: too many values to unpack (expected 2)").replace(
                "/v/transformers/trainer", "/v/site-packages/sillm/dpo"),
            "error_in_package", "Update sillm", "own code",
        ),
        (
            "OSError: Distant resource does not seem to be on huggingface.co (missing commit header).",
            "network_unreachable", "must show x-repo-commit", "HF_HUB_OFFLINE",
        ),
        (
            "Error: request error: https://huggingface.co/org/model/resolve/main/tokenizer.json: status code 401",
            "model_gated", "Request access", "HTTPS_PROXY",
        ),
        (
            "Error for process train : Found dtype Long but expected Float - 2026-01-20T14:14:44",
            "dtype_mismatch", "num_labels to the number of classes", "prepare_model_for_kbit_training",
        ),
        (
            "RuntimeError: expected dtype Float but got dtype Long (validate_dtype at /a/TensorIterator.cpp:143)",
            "dtype_mismatch", "make the labels float", "prepare_model_for_kbit_training",
        ),
        (
            "RuntimeError: Found dtype Half but expected BFloat16",
            "dtype_mismatch", "Load the whole model in one dtype", "num_labels",
        ),
        (
            "RuntimeError: Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; "
            "but got torch.cuda.FloatTensor instead (while checking arguments for embedding)",
            "dtype_mismatch", "are torch.cuda.FloatTensor", "prepare_model_for_kbit_training",
        ),
        (
            "RuntimeError: 0D or 1D target tensor expected, multi-target not supported",
            "label_out_of_range", "one label for each row", "Number labels from 0",
        ),
        (
            "TypeError: an integer is required (got type NoneType)",
            "label_out_of_range", "rows without a label", "Number labels from 0",
        ),
        (
            "RuntimeError: mm_npu:a.ts:92 NPU function error: call aclnnMm failed, error code is 161002\n"
            "[PID: 5] 2026-01-02-18:37:41 AclNN_Parameter_Error(EZ1001): Self dtype DT_FLOAT not support.",
            "operation_unsupported", "if it names DT_FLOAT", "Apple",
        ),
        ("AssertionError: batch_size cannot be larger than data size", "data_empty", "Lower the batch size", "max_length"),
        (
            "  ValueError: You should supply an encoding or a list of encodings\n  to this method that includes input_ids, "
            "but you provided\n  ['images', 'chosen_input_ids']",
            "dataset_column_missing", "pass no data_collator", "rename_column",
        ),
        (
            "ab12:47:52 [2] NCCL INFO transport/shm.cc:101 -> 2\nab12:47:52 [2] NCCL INFO init.cc:813 -> 2",
            "shared_memory_full", "--shm-size", "NCCL_DEBUG",
        ),
        (
            "  \u00d7 Failed to build `flash-attn==2.8.3`\n"
            "      <string>:9: UserWarning: flash_attn was requested, but nvcc was not found.",
            "extension_build_failed", "an image with -devel", "MAX_JOBS",
        ),
        (
            "ValueError: `FlatParameter` requires uniform dtype but got torch.float16 and torch.float32",
            "fsdp_mixed_dtype", "one dtype", "frozen",
        ),
        (
            "RuntimeError: attempting to assign a gradient with dtype 'c10::BFloat16' to a tensor with dtype 'float'.",
            "dtype_mismatch", "A weight is float and its gradient c10::BFloat16", "prepare_model_for_kbit_training",
        ),
        (
            "Error merging experiment=a\nKey 'defaults' not in 'TrainConfig'",
            "settings_unknown", "TrainConfig has no key defaults", "lathe import",
        ),
        (
            "tune : The term 'tune' is not recognized as the name of a cmdlet, function, script file, or operable program.",
            "package_missing", "Windows finds no such program", "sentencepiece",
        ),
        (
            "AttributeError: 'LoraModel' object has no attribute 'vllm_engine'",
            "package_incompatible", "fast_inference=True", "flash-attn",
        ),
        (
            "TypeError: main() got an unexpected keyword argument 'version_base'",
            "package_incompatible", "hydra-core>=1.2", "flash-attn",
        ),
        ("ValueError: Invalid role tag in [{'from': 'human'}].", "chat_roles_invalid", "user_tag", "Gemma"),
        (
            traceback("convert", '{"role": tag_mapping[message[attr.role_tag]]}', "KeyError: 'user'").replace(
                "/v/transformers/", "/w/src/llamafactory/data/"),
            "chat_roles_invalid", "a role user", "rename_column",
        ),
        (
            traceback("forward", "hidden_states = inputs_embeds + positions",
                "RuntimeError: The size of tensor a (504) must match the size of tensor b (448) at non-singleton dimension 1"),
            "sequence_too_long", "positions for 448 tokens", "own code",
        ),
        (
            traceback("compare", "assert saved == given, message",
                "AssertionError: tensor_model_parallel_size value from checkpoint (1) is not equal to the input argument value (2)."
            ).replace("/v/transformers/", "/w/megatron/"),
            "checkpoint_world_size", "--target-tensor-parallel-size", "zero_to_fp32",
        ),
        (
            "(Runner pid=29) [2025-07-06 07:14:27,052 C 29 29] task_receiver.cc:219:  Check failed: valid",
            "segmentation_fault", "/tmp/ray/session_latest/logs", "flash-attn",
        ),
        (
            traceback("map", "value = self.data[key]", "KeyError: None").replace(
                "/v/transformers/trainer", "/v/site-packages/datasets/formatting/formatting"),
            "dataset_column_missing", "dataset_info.json", "rename_column",
        ),
        (
            "RuntimeError: Given groups=1, weight of size [128, 128, 3], expected input[1, 80, 300] to have 128 channels, "
            "but got 80 channels instead",
            "settings_invalid", "large-v3 takes 128 mel bins", "The message names",
        ),
        (
            "RuntimeError: Calculated padded input size per channel: (5 x 4). Kernel size: (5 x 5). "
            "Kernel size can't be greater than actual input size",
            "settings_invalid", "An input is 5 x 4, the kernel 5 x 5", "The message names",
        ),
        (
            "AssertionError: intra_layer_model parallel group is not initialized",
            "settings_invalid", "initialize_model_parallel", "The message names",
        ),
        (
            traceback("sync", "self.client.update(name)", "AttributeError: 'Worker' object has no attribute 'client'").replace(
                "/v/transformers/", "/w/verl/workers/"),
            "error_in_package", "The file belongs to verl", "pdb",
        ),
    ],
)  # fmt: skip
def test_advice_agrees_with_the_log(log, cause, advice, not_advised):
    diagnosis = diagnose(log)
    advised = " ".join(diagnosis.fix)
    assert diagnosis.cause == cause
    assert advice in advised
    assert not_advised not in advised
    assert "micro_batch_size" not in diagnosis.changes


def test_a_run_of_lathe_is_advised_by_its_own_settings_in_evaluation():
    log = traceback("evaluation_loop", "logits = self.model(**inputs)", OUT_OF_MEMORY)
    assert diagnose(log, config={"micro_batch_size": 8}).changes["micro_batch_size"] == 4


def test_sentences_about_words_that_the_log_lacks_are_left_out():
    advised = diagnose(traceback("read", "frame[names]", "KeyError: '[1] not found in axis'")).fix
    assert advised and not any("{" in sentence for sentence in advised)
    assert "No column is named" not in " ".join(advised)


def test_a_hub_that_cannot_be_resolved_is_still_the_hubs():
    log = "socket.gaierror: [Errno -3] Temporary failure in name resolution"
    assert diagnose(log).cause == "network_unreachable"


HOLDS = (
    "GPU 0 has a total capacity of 47.50 GiB of which 1.25 GiB is free. Process 4711 has {other} GiB memory in use. Including "
    "non-PyTorch memory, this process has {own} GiB memory in use. Of the allocated memory {own} GiB is allocated by PyTorch, and "
    "{unused} GiB is reserved by PyTorch but unallocated."
)


def out_of_memory(asked, *, other, own, unused):
    """A log of an allocation that failed, in GiB."""
    return f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked} GiB. " + HOLDS.format(
        other=other, own=own, unused=unused
    )


@table(
    ("log", "title"),
    [
        ("OSError: [Errno 122] Disk quota exceeded", "The disk quota of the user"),
        ("OSError: [Errno 28] No space left on device", "A disk is full."),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***",
            "The job was preempted",
        ),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***",
            "reached its time limit.",
        ),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO NODE FAILURE ***",
            "A node of the job",
        ),
        ("huggingface_hub.errors.OfflineModeIsEnabled: Offline mode is enabled.", "Downloads are switched off"),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "vLLM has no GPU",
        ),
        (out_of_memory(2, other=40, own=6, unused=0), "Other processes use most"),
        (out_of_memory(2, other=1, own=45, unused=0), "Out of GPU memory."),
    ],
)
def test_the_title_says_what_the_log_says(log, title):
    diagnosis = diagnose(log)
    assert title in diagnosis.title
    assert diagnosis.explanation.startswith(diagnosis.title)


def test_memory_of_other_processes_changes_no_settings():
    diagnosis = diagnose(out_of_memory(2, other=40, own=6, unused=0))
    assert (diagnosis.changes, len(diagnosis.fix)) == ({}, 1)
    assert "Process 4711 uses 40.0 GiB" in diagnosis.fix[0]
    assert diagnose(out_of_memory(2, other=1, own=45, unused=0)).fix[1:]


@table(("asked", "fits"), [(3, True), (6, False)])
def test_memory_is_called_fragmented_only_where_it_would_be_enough(asked, fits):
    fix = " ".join(diagnose(out_of_memory(asked, other=1, own=40, unused=4)).fix)
    assert ("expandable_segments" in fix) is fits


@table(
    ("before", "advised"),
    [
        ("Loading checkpoint shards:  40%|####      | 2/5 [00:10<00:15,  5.00s/it]\n", True),
        ("Loading checkpoint shards: 100%|##########| 5/5 [00:25<00:00]\n{'loss': 1.2, 'epoch': 0.1}\n", False),
        ("Map:  40%|####      | 400/1000 [00:10<00:15]\n", False),
    ],
)
def test_a_process_killed_while_it_loaded_weights_is_told_to_load_less(before, advised):
    fix = " ".join(diagnose(before + "Killed").fix)
    assert ("low_cpu_mem_usage" in fix, "streaming" in fix) == (advised, not advised)


@table(
    ("called", "error", "advised"),
    [
        ("self.compute_metrics(found)", "scores() got an unexpected keyword argument 'losses'", "your function scores"),
        ("self.log(logs, start)", "PoemTrainer.log() got an unexpected keyword argument 'start'", "PoemTrainer.log"),
        ("self.attend(states)", "attend() got an unexpected keyword argument 'mask'", None),
    ],
)
def test_a_function_of_the_user_that_a_library_calls_is_named(called, error, advised):
    diagnosis = diagnose(
        f'Traceback (most recent call last):\n  File "/opt/train/a.py", line 9, in <module>\n    trainer.train()\n'
        f'  File "/v/site-packages/trl/trainer.py", line 9, in step\n    {called}\nTypeError: {error}\n'
    )
    assert diagnosis.cause == "package_incompatible"
    assert ("**kwargs" in " ".join(diagnosis.fix)) is (advised is not None)
    assert (advised or "") in diagnosis.fix[0]


def test_a_missing_value_in_own_code_is_named():
    log = (
        'Traceback (most recent call last):\n  File "/opt/train/a.py", line 9, in main\n'
        "    text = rows.get(name)[0].answer.strip()\nAttributeError: 'NoneType' object has no attribute 'strip'\n"
    )
    diagnosis = diagnose(log)
    assert (diagnosis.cause, diagnosis.confidence) == ("error_in_own_code", 0.5)
    assert "/opt/train/a.py, line 9 in main" in diagnosis.explanation
    assert diagnosis.fix[0].startswith("`rows.get(name)[0].answer` is None")


def test_rows_without_a_value_are_named_where_a_function_of_map_fails():
    fix = diagnose((TESTS / "logs/error_in_own_code.log").read_text(encoding="utf-8")).fix
    assert "(question, answer)" in fix[0]
    assert "/opt/lessons/prepare.py, line 17 in joined" in fix[1]


def test_the_nearest_cause_is_one_that_raises_the_type():
    for error in (
        "ZeroDivisionError: no space left on device",
        "AttributeError: 'NoneType' object has no attribute 'format'",
    ):
        log = traceback("main", "go()", error).replace("/v/transformers", "/v/site-packages/numpy")
        assert (diagnose(log).cause, diagnose(log).inferred) == ("unknown", {})


@table(
    "log",
    [
        "RuntimeError: The size of tensor a (0) must match the size of tensor b (14336) at non-singleton dimension 1",
        "KeyError: 'user'",
    ],
)
def test_without_its_line_of_code_a_message_of_many_causes_gives_none_with_confidence(log):
    assert diagnose(log).confidence < 0.8
