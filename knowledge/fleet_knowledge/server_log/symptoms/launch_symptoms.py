"""Lists the symptoms of failures that end a launch: arguments, speculation, model, ports."""

from __future__ import annotations

from fleet_knowledge.release import VersionRange
from fleet_knowledge.server_log.symptoms.symptom import AFTER, symptom

_SPEC = r"^(?:\w+\.)*(?:ValueError|AssertionError|NotImplementedError|RuntimeError): "
_TOOLS = (
    r"(?!(?:slurm|srun|sbatch|nvcc|ninja|gcc|g\+\+|cc|clang|ld|collect2|make|git|nvidia-|docker|"
    r"podman)[\w.-]*: )"
)
_ARGPARSE = rf"^{_TOOLS}[\w. -]{{1,60}}: error: "

SPECULATION_SYMPTOMS = (
    symptom(
        "spec_args_invalid",
        _SPEC + r".*Spec v2 (?:currently )?only supports topk",
        "server_args.py",
        cure="Unset SGLANG_ENABLE_SPEC_V2 or set --speculative-eagle-topk 1.",
        versions=VersionRange("0.5.5", "0.5.13"),
    ),
    symptom(
        "spec_args_invalid",
        _SPEC + r".*speculative_eagle_topk ?> ?1 with page_size ?> ?1",
        "server_args.py",
        cure="Set --page-size 1, or --attention-backend flashinfer or fa3.",
        versions=VersionRange("0.5.3"),
    ),
    symptom(
        "spec_args_invalid",
        _SPEC + r".*backend only supports topk ?= ?1",
        "server_args.py",
        cure="Set --speculative-eagle-topk 1 or use another attention backend.",
    ),
    symptom(
        "spec_args_invalid",
        _SPEC + r"Only EAGLE\b.*speculative algorithms? (?:is|are) supported",
        "server_args.py",
        cure="Use EAGLE instead of the alias NEXTN on this version.",
        versions=VersionRange("0.5.9"),
    ),
    symptom(
        "spec_args_invalid",
        _ARGPARSE + r".*--speculative-algo\w*: invalid choice",
        "argparse",
        cure=(
            "The installed SGLang is too old for this algorithm: update SGLang, or choose an "
            "algorithm that the line lists."
        ),
    ),
    symptom(
        "spec_args_invalid",
        _ARGPARSE + r".*--speculative-",
        "argparse",
    ),
    symptom(
        "spec_args_invalid",
        r"(?:ValueError|AssertionError|NotImplementedError): .*(?:not supported in (?:decode|"
        r"prefill|target_verify|"
        r"draft \w+) attention backend)",
        "speculative/draft_utils.py",
        cure=(
            "Choose an attention backend that supports speculation, such as flashinfer, fa3 or "
            "triton (intel_amx on a CPU)."
        ),
        versions=VersionRange("0.5.9"),
    ),
    symptom(
        "spec_draft_mismatch",
        (
            "(?:RuntimeError|ValueError|AssertionError|KeyError): .*(?:draft|eagle).*(?:size "
            "mismatch|does ?n[o']t match|vocab|hidden_size)"
        ),
        "speculative/",
    ),
    symptom(
        "spec_draft_missing",
        (
            "AttributeError: .*(?:set_embed|hot_token_id|set_eagle3_layers_to_capture|"
            "get_embed_and_head|set_embed_and_head)"
        ),
        "sglang issue 36528",
    ),
    symptom(
        "spec_draft_missing",
        "(?:ValueError|AssertionError): .*(?:speculative[_-]draft[_-]model(?:[_-]path)?|draft "
        "model).*(?:required|must "
        "be|missing|not (?:set|specified|provided)|provide|need)",
        "server_args.py",
    ),
    symptom(
        "spec_args_invalid",
        _SPEC
        + (
            r"(?!.*--mem-fraction-static).*(?:[Ss]peculat|Spec v2|topk ?= ?1\b|\b(?:EAGLE3?|NEXTN|"
            r"NGRAM|STANDALONE|DFLASH|DSPARK|UNO|"
            r"LOOKAHEAD)\b.*(?:not support|support|require|must|only))"
        ),
        "server_args.py 0.5.9, arg_groups/speculative_hook.py 0.5.23",
    ),
)

MODEL_SYMPTOMS = (
    symptom(
        "hf_auth",
        r"GatedRepoError|Cannot access gated repo(?: for url "
        r"https?://[^/\s]+/(?P<model>[^/\s]+/[^/\s]+)/)?|"
        r"Access to model (?P<repository>\S+) is restricted|gated repo|Invalid user token|(?:401|"
        r"403) Client Error: (?:Unauthorized|Forbidden)|Client error '40[13] .*(?:huggingface|"
        r"hf\.co)|"
        r"Invalid credentials in Authorization header",
        "huggingface_hub",
    ),
    symptom(
        "hf_auth",
        "401 Client Error.*Repository ?Not ?Found|RepositoryNotFoundError: 401",
        "huggingface_hub: a private model without a token",
    ),
    symptom(
        "model_not_found",
        r"OfflineModeIsEnabled|offline mode is enabled|outgoing traffic has been disabled",
        "huggingface_hub",
        cure=(
            "HF_HUB_OFFLINE is set and the files are not in this host's cache: copy them there "
            "first, or unset HF_HUB_OFFLINE."
        ),
    ),
    symptom(
        "hf_unreachable",
        r"We couldn't connect to '?https?:|error happened while trying to locate the files? on "
        r"the Hub|"
        r"(?:Client error '429|Server error '5\d\d) .*(?:huggingface|hf\.co|modelscope)",
        "transformers; huggingface_hub, which uses requests (0.x) or httpx (1.x)",
    ),
    symptom(
        "weights_corrupt",
        r"config file at '\S+' is not a valid JSON file",
        "transformers",
        cure=(
            "config.json is truncated or not JSON (a Git LFS pointer or an error page): copy it "
            "again."
        ),
    ),
    symptom(
        "weights_corrupt",
        (
            r"(?:FileNotFoundError|OSError): .*No such file or directory:? .*\.(?:safetensors|bin|"
            r"pt|gguf)\b"
        ),
        "safetensors, torch",
        cure=(
            "A weight file that the model's index names is missing: copy it and compare the sizes "
            "with the repository."
        ),
    ),
    symptom(
        "model_not_found",
        r"RepositoryNotFoundError|(?:Client error '404|404 Client Error: Not Found) "
        r".*(?:huggingface|hf\.co|modelscope)|"
        r"Repository Not Found|is not a valid model identifier|is not a local folder|"
        r"Repo id must be|does not appear to have a file named config\.json|"
        r"LocalEntryNotFoundError|"
        r"Can't load the configuration of|FileNotFoundError: .*config\.json|"
        r"Cannot find any model weights with|EntryNotFoundError|HFValidationError",
        "transformers, huggingface_hub",
    ),
    symptom(
        "hf_unreachable",
        r"(?:ConnectionError|ReadTimeout|ConnectTimeout|MaxRetryError|ProxyError|SSLError|"
        r"HfHubHTTPError|"
        r"HTTPError).*(?:huggingface|hf\.co|modelscope|hf-mirror)|(?:429|50[0-4]) (?:Client|"
        r"Server) Error.*huggingface",
        "requests, huggingface_hub",
    ),
    symptom(
        "model_unsupported",
        r"Model architectures? .*(?:not supported|are not supported)|Unrecognized model in|"
        r"does not recognize this architecture|trust_remote_code ?= ?True|Unknown quantization "
        r"method|"
        r"is not supported for the current GPU\. Minimum capability|[Uu]nsupported (?:model|"
        r"architecture)",
        "models/registry.py, transformers",
    ),
    symptom(
        "model_unsupported",
        r"Tokenizer class \S+ does not exist or is not currently imported",
        "transformers",
        cure=(
            "Add --trust-remote-code when the model brings its own tokenizer, else update "
            "transformers and SGLang."
        ),
    ),
    symptom(
        "model_unsupported",
        (
            r"^KeyError: '(?:model|language_model|layers|transformer|lm_head|visual|"
            r"vision)\b[\w.]*\.[\w.]*(?:weight|scale|bias|qzeros|proj)"
        ),
        "models/*.py load_weights; sglang issues 3604, 4598, 10175, 19644",
        cure="The files contain a weight that this version's model does not have, usually because "
        "it does not know the quantisation for this architecture: update SGLang, check "
        "--quantization, or use a checkpoint with another quantisation.",
    ),
    symptom(
        "argument_error",
        (
            r"does not match the quantization method specified|is not supported for quantization "
            r"method|Cannot find the config file for \w"
        ),
        "configs/model_config.py, model_loader/loader.py",
        cure="--quantization and --dtype must match the checkpoint: leave --quantization out "
        "(config.json has it), or use the dtype that the line lists.",
    ),
    symptom(
        "weights_corrupt",
        r"SafetensorError|MetadataIncompleteBuffer|HeaderTooLarge|InvalidHeaderDeserialization|"
        r"Error while deserializing header|PytorchStreamReader failed|invalid load key|size "
        r"mismatch for |unexpected EOF|"
        r"Missing key\(s\) in state_dict",
        "safetensors, torch",
    ),
    symptom(
        "weight_load_incomplete",
        (
            r"TP rank (?P<healthy_rank>\d+) could finish the model loading, but|other ranks that "
            r"didn't finish loading"
        ),
        "model_runner.py",
        AFTER,
    ),
    symptom(
        "parallel_size_invalid",
        r"(?:ValueError|AssertionError): .*(?:is not divisible by|not divisible by|must be "
        r"divisible by|"
        r"should be (?:evenly )?divisible|(?:smaller|less|larger) than .*tp_size|block_[nk] ?= "
        r"?\d+|"
        r"assert (?=.*(?:tp|dp|pp|ep|world|parallel)_?\w*size).* % .*== 0)",
        "layers/, server_args.py",
    ),
    symptom(
        "argument_error",
        "AssertionError: SGLANG_CPU_OMP_THREADS_BIND is not set",
        "utils/numa_utils.py",
        cure="Set SGLANG_CPU_OMP_THREADS_BIND to the cores of each rank, for example '0-15|16-31'.",
        versions=VersionRange("0.5.3"),
    ),
    symptom(
        "argument_error",
        _ARGPARSE,
        "argparse",
    ),
    symptom(
        "argument_error",
        "^ValueError: .*context_length .*is greater than the derived|"
        "is not a valid (?:ServerArgs|argument)|Unknown (?:argument|option)|No such option",
        "server_args.py",
    ),
)

PORT_SYMPTOMS = (
    symptom(
        "dist_port_in_use",
        r"(?:dist_init_port|nccl_port|port) at (?P<port>\d+) is not available",
        "server_args.py",
        versions=VersionRange("0.5.9"),
    ),
    symptom(
        "dist_port_in_use",
        r"The port (?P<port>\d+) is in use, but we could not find",
        "server_args.py",
        versions=VersionRange("0.5.9"),
    ),
    symptom(
        "dist_port_in_use",
        (
            r"(?:DistNetworkError|server socket has failed to (?:listen|bind)).*?port: "
            r"(?P<port>\d+).*EADDRINUSE"
        ),
        "torch TCPStore",
    ),
    symptom(
        "dist_port_in_use",
        "(?:DistNetworkError|server socket has failed to (?:listen|bind)).*EADDRINUSE",
        "torch TCPStore",
    ),
    symptom(
        "dist_port_in_use",
        r"Port is already in use\. dist_init_port=(?P<port>\d+)",
        "server_args.py",
        AFTER,
        versions=VersionRange("0.5.9"),
    ),
    symptom(
        "port_in_use",
        r"error while attempting to bind on address \((?P<address>'[^']*'), (?P<port>\d+)[^)]*\)",
        "uvicorn, asyncio",
    ),
    symptom(
        "dist_port_in_use",
        r"zmq\.error\.ZMQError: Address already in use",
        "zmq endpoints of the launcher",
    ),
    symptom(
        "port_in_use",
        r"\[Errno 98\]|[Aa]ddress already in use",
        "errno 98",
        AFTER,
    ),
    symptom(
        "port_in_use",
        r"[Pp]ort (?P<port>\d+) is (?:already )?in use",
        "server_args.py",
        AFTER,
    ),
    symptom(
        "dist_init_timeout",
        r"DistStoreError: |Timed out after \d+ seconds waiting for clients|connectFullMesh failed|"
        r"retrieving ncclUniqueId from|"
        r"Gloo .*timed out|"
        r"wait timeout after \d+ms, keys: |failed to connect to .*:\d+.*(?:timed out|timeout)|"
        r"The client socket has (?:timed out|failed to connect to any)|"
        r"cannot be retrieved \(gai error",
        "torch TCPStore, gloo",
        AFTER,
    ),
)
