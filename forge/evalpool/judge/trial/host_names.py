# pyright: strict
"""Holds the closed list of what a candidate's host code may name; `host_code.py` reads it.

A name is here if what it gives is decided by its arguments: by shapes, types and strides of
tensors, by parameters, by the card. Not here, and never to be added: what tells of the process
(time, threads, memory, environment, switches, hooks, counters, addresses), what loads, saves,
registers or seeds, and what hands out the inside of a function, a class or a module.
"""

from __future__ import annotations

import re

from forge.evalpool.judge.program.ops import KINDS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TORCH_TYPE = re.compile(
    r"torch\.(b?float|u?int|complex)\d*\w*|torch\.(half|double|long|short|bool)"
)
"""A type of torch's: all that a kernel's body may name of it."""
VIEWS = _words(
    "T mT H view view_as reshape reshape_as permute transpose t squeeze unsqueeze expand expand_as "
    "flatten unflatten contiguous narrow select split chunk unbind unfold as_strided movedim "
    "moveaxis swapaxes swapdims diagonal detach ravel broadcast_to tensor_split split_with_sizes "
    "view_as_real view_as_complex data adjoint squeeze_ unsqueeze_ transpose_ t_ numpy hsplit "
    "vsplit dsplit values items keys copy"
)
"""Functions and attributes whose result may lie in the same memory."""
COMPUTED = (
    {name for one in KINDS if not (name := one.removeprefix("aten.")).startswith("_")}
    | VIEWS
    | _words(
        "absolute arccos arcsin arctan arctan2 bilinear cdist clip conj cosine_similarity cov "
        "cross cross_entropy ctc_loss det diag diagflat divide dropout embedding_bag equal fix "
        "fliplr flipud allclose greater greater_equal grid_sampler group_norm gru_cell inner "
        "hinge_embedding_loss instance_norm inverse is_complex isreal is_floating_point layer_norm "
        "less less_equal log_softmax logdet lstm_cell margin_ranking_loss matrix_exp matrix_power "
        "max_pool1d max_pool2d max_pool3d multiply nanquantile negative not_equal numel "
        "pairwise_distance pdist quantile resolve_conj resolve_neg rms_norm rrelu slogdet softmax "
        "subtract svd take_along_dim tile trapezoid triplet_margin_loss true_divide unique "
        "cosine_embedding_loss histogram poisson_nll_loss rnn_relu_cell rnn_tanh_cell stft istft"
    )
)
"""Operations that a program may have, and functions that are made of some."""
FACTORIES = _words(
    "empty zeros ones full tensor as_tensor asarray arange linspace logspace eye rand randn Tensor "
    "randint randperm normal scalar_tensor from_numpy empty_strided empty_permuted tril_indices "
    "triu_indices bartlett_window blackman_window hamming_window hann_window kaiser_window fftfreq "
    "rfftfreq"
)
"""Functions that make a tensor; its type and place are the process's where they name none."""
KINDS_ASKED = _words("dtype element_size itemsize nbytes is_cuda device type")
"""Attributes of tensors that tell their type or place."""
SIZES = _words("shape size numel nelement dim ndim ndimension len")
"""Attributes of tensors that tell neither."""
CASTS = _words("to type type_as float double half bfloat16 int long short bool")
"""Methods of tensors that choose the type of what they give."""
WHOLE = _words(
    "zeros ones full tensor as_tensor asarray arange eye empty empty_strided empty_permuted prod "
    "randint randperm tril_indices triu_indices scalar_tensor sum max min amax amin any all cumsum "
    "abs"
)
"""Functions whose results are whole numbers if their arguments are."""
READS = _words("float int bool complex min max sorted item tolist")
"""Functions and methods that make a number of a tensor, or choose by it."""
OF_TENSORS = COMPUTED | _words("shape dtype device ndim is_cuda layout itemsize nbytes")
"""Attributes of tensors that tell what they are."""
TORCH = _words(
    "Tensor Size device dtype finfo iinfo as_tensor tensor empty empty_like empty_strided "
    "empty_permuted asarray from_numpy is_tensor float16 bfloat16 float32 float64 float half "
    "double int8 int16 int32 int64 int long short uint8 uint16 uint32 uint64 bool complex64 "
    "complex128 cfloat float8_e4m3fn float8_e5m2 contiguous_format channels_last channels_last_3d "
    "preserve_format strided memory_format inf nan pi e no_grad inference_mode enable_grad "
    "set_grad_enabled is_grad_enabled autocast broadcast_shapes broadcast_tensors promote_types "
    "result_type can_cast meshgrid hstack vstack dstack column_stack row_stack concat concatenate "
    "atleast_1d atleast_2d atleast_3d cartesian_prod combinations vander chain_matmul compile "
    "manual_seed "
    "autograd.Function autograd.function.once_differentiable amp.autocast amp.custom_fwd "
    "amp.custom_bwd utils.checkpoint.checkpoint cuda.device cuda.device_of cuda.current_device "
    "cuda.is_available cuda.get_device_properties cuda.get_device_capability version.hip "
    "cuda.is_bf16_supported cuda.synchronize cuda.empty_cache cuda.amp.autocast "
    "cuda.amp.custom_fwd cuda.amp.custom_bwd linalg.norm linalg.matrix_norm linalg.det linalg.inv "
    "linalg.solve linalg.cholesky linalg.eigh linalg.svd linalg.slogdet linalg.multi_dot "
    "linalg.matrix_power linalg.lu_factor linalg.vecdot linalg.diagonal fft.fft fft.ifft fft.rfft "
    "fft.irfft fft.fft2 fft.ifft2 fft.rfft2 fft.irfft2 fft.fftn fft.ifftn fft.fftshift "
    "fft.ifftshift fft.fftfreq fft.rfftfreq nn.init.calculate_gain nn.parameter.Parameter "
    "nn.init._calculate_fan_in_and_fan_out nn.init._calculate_correct_fan nn.modules.utils._pair "
    "nn.modules.utils._triple nn.modules.utils._single cuda._DeviceGuard cuda.set_device "
    "_inductor.select_algorithm.extern_kernels _inductor.runtime.triton_heuristics.grid "
    "_inductor.runtime.triton_heuristics.split_scan_grid _C._dynamo.guards.assert_size_stride "
    "_C._dynamo.guards._empty_strided_cuda _C._dynamo.guards._reinterpret_tensor "
    "_C._cuda_getCurrentRawStream library.custom_op library.triton_op library.wrap_triton"
)
"""Names of torch beside those of operations and layers; the last are those of Inductor's output."""
FUNCTIONAL = _words(
    "affine_grid alpha_dropout adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
    "dropout1d dropout2d dropout3d fold gaussian_nll_loss grid_sample gumbel_softmax interpolate "
    "local_response_norm logsigmoid lp_pool1d lp_pool2d lp_pool3d max_unpool1d multi_margin_loss "
    "multilabel_margin_loss multilabel_soft_margin_loss nll_loss normalize pad softmin softsign "
    "tanhshrink triplet_margin_with_distance_loss upsample multi_head_attention_forward"
)
"""Functions of `torch.nn.functional` beside those of operations."""
NO_LAYERS = _words("DataParallel SyncBatchNorm Container")
TRITON = _words(
    "jit cdiv next_power_of_2 autotune Config heuristics OutOfResources constexpr_function "
    "set_allocator reinterpret tools.tensor_descriptor.TensorDescriptor "
    "runtime.autotuner.OutOfResources "
    "runtime.driver.active.get_current_target runtime.driver.active.get_active_torch_device "
    "runtime.driver.active.utils.get_device_properties runtime.driver.active.get_current_device"
)
"""Names of Triton beside its language's."""
OF_CARD = _words(
    "is_bf16_supported get_device_capability get_device_properties get_current_target hip"
)
"""Names of torch and Triton that tell of the card."""
CARD = _words(
    "major minor multi_processor_count total_memory warp_size max_threads_per_multi_processor "
    "max_threads_per_block regs_per_multiprocessor shared_memory_per_block L2_cache_size "
    "shared_memory_per_block_optin shared_memory_per_multiprocessor arch backend "
    "max_shared_mem max_num_regs multiprocessor_count warpSize get"
)
"""Fields of what these give that are alike on each card of a kind."""
INNER = _words("core standard semantic random extra math target_info libdevice")
"""Modules in that of Triton's language: of its other names Triton says which there are."""
LIBRARIES = _words(
    "triton.language.math triton.language.extra.libdevice triton.language.libdevice math typing "
    "triton.language.extra.cuda.libdevice triton.language.extra.hip.libdevice collections.abc "
    "typing_extensions numbers torch.ops.aten torch._inductor.runtime.triton_helpers "
    "torch._inductor.runtime.triton_helpers.math torch._inductor.runtime.triton_helpers.libdevice"
)
"""Modules of which every public name is allowed."""
OTHERS = _words(
    "dataclasses.dataclass dataclasses.field dataclasses.replace enum.Enum enum.IntEnum enum.auto "
    "functools.partial functools.lru_cache functools.cache functools.wraps functools.reduce "
    "itertools.product itertools.repeat itertools.chain itertools.accumulate itertools.pairwise "
    "collections.namedtuple collections.OrderedDict operator.mul operator.add copy.deepcopy "
    "copy.copy types.SimpleNamespace contextlib.nullcontext warnings.warn abc.ABC "
    "abc.abstractmethod einops.rearrange einops.repeat einops.reduce numpy.array numpy.sqrt "
    "numpy.log2 numpy.log numpy.exp numpy.sin numpy.cos numpy.pi numpy.ceil numpy.floor numpy.prod "
    "numpy.inf numpy.arange numpy.outer numpy.eye numpy.float32 numpy.float64 numpy.int32 "
    "numpy.int64 numpy.ndarray numpy.linspace numpy.zeros numpy.ones numpy.sum numpy.abs "
    "numpy.stack numpy.concatenate numpy.maximum numpy.hanning numpy.hamming"
)
"""Names of other modules."""
PLAIN_MODULES = _words("torch triton math typing __future__ dataclasses functools")
"""Packages whose import a shared child has done, or does at no cost."""
ALONE = _words(
    "set_allocator set_grad_enabled print warn compile checkpoint lru_cache cache numpy einops "
    "autocast custom_fwd custom_bwd inference_mode _inductor _dynamo library"
)
"""Parts of names that a process may notice: such a candidate has a capture child of its own."""
SWITCHES = _words(
    "torch.backends.cuda.matmul.allow_tf32 torch.backends.cudnn.allow_tf32 "
    "torch.backends.cudnn.benchmark"
)
"""Switches that a host may set, and not read: the executor has its own."""

BUILTINS = _words(
    "abs all any bool bytes complex dict divmod enumerate float filter getattr hasattr int "
    "isinstance issubclass len list map max min object pow print property range reversed round set "
    "frozenset setattr slice sorted staticmethod classmethod str sum super tuple zip callable repr "
    "type format ValueError AssertionError TypeError RuntimeError NotImplementedError Exception "
    "ImportError ModuleNotFoundError KeyError IndexError AttributeError ArithmeticError "
    "ZeroDivisionError OverflowError NotImplemented UserWarning RuntimeWarning"
)
TITLES = _words("__all__ __version__ __author__")
"""Hidden names that a module may set: it cannot read them."""
RESERVED = _words("getattr hasattr setattr range enumerate super self cls")
"""Names that no function, class or argument may have, but `self` and `cls` of a method."""
ITERATORS = _words("zip enumerate reversed map filter product repeat chain accumulate pairwise")
"""Functions whose result is another one each time that it is read."""
CONSUMERS = ITERATORS | _words(
    "sum tuple list max min any all dict sorted set frozenset join prod reduce OrderedDict len "
    "ModuleList Sequential ParameterList ModuleDict cat stack extend"
)
"""Functions that read an iterator at once."""
CHANGING = _words(
    "append extend insert pop popitem update setdefault clear remove sort reverse move_to_end add "
    "fill put partition"
)
"""Methods that change a list, a set or a dict."""
BUILDING = _words(
    "register_buffer register_parameter register_module add_module train load_state_dict "
    "requires_grad_ apply"
)
"""Methods of modules that change them: for constructors alone."""
ASKED = _words("is_contiguous data_ptr storage_offset needs_input_grad requires_grad")
"""Attributes of tensors that tell of the caller."""
CLASSES = _words(
    "int float bool str tuple list dict slice Tensor Size dtype complex Integral Real Number "
    "Sequence Iterable Mapping range"
)
"""Classes that `isinstance` may ask for, beside layers and own ones."""
NO_CLASSES = _words("Parameter Buffer Module FakeTensor")
METHODS = BUILDING | _words(
    "eval to cuda cpu half float double bfloat16 type state_dict parameters buffers children "
    "modules named_parameters named_buffers named_children named_modules zero_grad share_memory "
    "get_parameter get_submodule get_buffer training compile"
)
"""Methods of torch's modules that others call: a class may not define them anew."""
DUNDERS = _words("__init__ __post_init__ __call__ __len__ __repr__")
"""Methods with such names that a class may define."""
OF_MODULES = _words(
    "_parameters _buffers _non_persistent_buffers_set _backward_pre_hooks _backward_hooks "
    "_is_full_backward_hook _forward_hooks _is_replica _forward_hooks_with_kwargs _version "
    "_forward_hooks_always_called _forward_pre_hooks _forward_pre_hooks_with_kwargs _modules "
    "_state_dict_hooks _state_dict_pre_hooks _load_state_dict_pre_hooks _apply _call_impl "
    "_load_state_dict_post_hooks _compiled_call_impl _get_backward_hooks _get_name "
    "_load_from_state_dict _named_members _replicate_for_data_parallel _slow_forward _hf_hook "
    "_register_load_state_dict_pre_hook _register_state_dict_hook _save_to_state_dict "
    "_wrapped_call_impl _get_backward_pre_hooks _maybe_warn_non_full_backward_hook "
    "_former_parameters"
)
"""Hidden attributes that torch, and what wraps a module, give it."""
TELLING = _words(
    "T_destination apply_ as_subclass backward boxed_grads_call call_super_init ccol_indices "
    "clear_saved_tensors_on_access coalesce col_indices compile const_data_ptr crow_indices "
    "dense_dim dim_order dirty_tensors dump_patches eig generate_vmap_rule geqrf get_device "
    "get_extra_state grad grad_dtype grad_fn hash_tensor indices int_repr ipu is_coalesced is_conj "
    "is_cpu is_distributed is_inference is_ipu is_leaf is_maia is_meta is_mkldnn is_mps is_mtia "
    "is_neg is_nested is_pinned is_quantized is_set_to is_shared is_sparse_csr is_vulkan is_xla "
    "is_xpu jvp lstsq map2_ map_ mark_shared_storage materialize_grads metadata module_load mtia "
    "maybe_clear_saved_tensors name names new next_functions non_differentiable orgqr ormqr "
    "output_nr q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale "
    "q_zero_point qr qscheme record_stream register_backward_hook register_forward_hook "
    "register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook "
    "register_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook "
    "register_post_accumulate_grad_hook register_prehook register_state_dict_post_hook "
    "register_state_dict_pre_hook reinforce resize resize_ resize_as resize_as_ "
    "resize_as_sparse_ retain_grad retains_grad row_indices save_for_forward saved_for_forward "
    "saved_variables set_ set_extra_state set_submodule setup_context share_memory share_memory_ "
    "slice_inverse smm sparse_dim sparse_mask sparse_resize_ sparse_resize_and_clear_ sspaddmm "
    "storage storage_type symeig to_dense to_empty to_mkldnn to_padded_tensor to_save to_sparse "
    "to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr untyped_storage vjp "
    "vmap volatile xpu zero_grad add_pre_run_hook arg_names args cache_clear cache_info cache_key "
    "cache_parameters check_disk_cache constexprs create_binder debug def_file_col_number "
    "def_file_line_number device_caches do_bench do_not_specialize do_not_specialize_on_alignment "
    "file_name fn func get_capture_scope hash is_gluon kernel keywords launch_metadata module "
    "noinline params parse pre_run_hooks preload prune_configs raw_src repr run signature src "
    "starting_line_number used_global_vals version warmup asm n_regs n_spills n_max_threads "
    "pci_bus_id pci_device_id pci_domain_id uuid luid "
    "cache configs_timings bench_time nargs gi_frame gi_code cr_frame f_locals f_back "
    "f_globals tb_frame tb_next"
)
"""Attributes of tensors, modules, functions and kernels that tell more than what they compute.
`tests/evalpool/trial/test_host_code.py` says that all others are known. A class may have one of
such a name: it is read from `self` alone."""
