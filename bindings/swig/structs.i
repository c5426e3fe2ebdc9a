/* structs.i: the structs as objects: made with their defaults, strings and arrays in them owned by the object.
 *
 * A char* field that is set gets a copy of the text; the destructor frees it. Where a struct points to an array, a method
 * copies a list of the language's into one.
 */
%typemap(memberin) const char* {
    free((void*)$1);
    $1 = $input ? strdup($input) : NULL;
}

%define ddp_plain_options(TYPE)
%extend TYPE {
    TYPE() {
        TYPE* made = (TYPE*)calloc(1, sizeof(TYPE));
        if (made) TYPE ## _init(made);
        return made;
    }
    ~TYPE() { free($self); }
}
%enddef
ddp_plain_options(ddp_outer_options)
ddp_plain_options(ddp_elastic_options)

%immutable ddp_elastic_options::group;
%extend ddp_elastic_options {
    /* Sets group, which stays the caller's: an assignment would take it over. */
    void set_group(const ddp_group_options* group) { $self->group = group; }
}

/* Results: the caller makes an empty one and the library fills it. */
%define ddp_result_struct(TYPE)
%extend TYPE {
    TYPE() {
        TYPE* made = (TYPE*)calloc(1, sizeof(TYPE));
        if (made) made->struct_size = sizeof(TYPE);
        return made;
    }
    ~TYPE() { free($self); }
}
%enddef
ddp_result_struct(ddp_environment)
ddp_result_struct(ddp_stats)
ddp_result_struct(ddp_tensor)
ddp_result_struct(ddp_elastic_step)
ddp_result_struct(ddp_piece)
ddp_result_struct(ddp_optimizer_state)

%immutable ddp_optimizer_state::name;

%immutable ddp_tensor::shape;
%extend ddp_tensor {
    /* The size of one dimension; -1 out of range. */
    int64_t extent(int32_t i) { return i >= 0 && i < $self->ndim ? $self->shape[i] : -1; }
}

/* Options that own copies, and what frees those. */
%{
#define DDP_FREE_FIELD(field) free((void*)(field))

static void ddp_store_options_forget(ddp_store_options* options) {
    DDP_FREE_FIELD(options->uri);
    DDP_FREE_FIELD(options->secret);
}
static void ddp_group_options_forget(ddp_group_options* options) {
    DDP_FREE_FIELD(options->init_method);
    DDP_FREE_FIELD(options->backend);
    DDP_FREE_FIELD(options->backend_options);
    DDP_FREE_FIELD(options->group_name);
    DDP_FREE_FIELD(options->secret);
}
static void ddp_context_options_forget(ddp_context_options* options) { DDP_FREE_FIELD(options->bucket_caps); }
static void ddp_param_desc_forget(ddp_param_desc* desc) {
    DDP_FREE_FIELD(desc->name);
    DDP_FREE_FIELD(desc->shape);
}
%}

%define ddp_owning_options(TYPE)
%extend TYPE {
    TYPE() {
        TYPE* made = (TYPE*)calloc(1, sizeof(TYPE));
        if (made) TYPE ## _init(made);
        return made;
    }
    ~TYPE() {
        TYPE ## _forget($self);
        free($self);
    }
}
/* The exported function fills a struct anew, and would lose what it owns. */
%exception TYPE ## _init_sized {
    TYPE ## _forget(arg1);
    $action
}
%enddef
ddp_owning_options(ddp_store_options)
ddp_owning_options(ddp_group_options)
ddp_owning_options(ddp_context_options)
ddp_owning_options(ddp_param_desc)

%immutable ddp_context_options::bucket_caps;
%immutable ddp_context_options::bucket_cap_count;
%extend ddp_context_options {
    /* Sets bucket_caps and bucket_cap_count. */
    void set_bucket_caps(const uint64_t* caps, size_t count) {
        uint64_t* copy = count ? (uint64_t*)malloc(count * sizeof *copy) : NULL;
        if (copy) memcpy(copy, caps, count * sizeof *copy);
        DDP_FREE_FIELD($self->bucket_caps);
        $self->bucket_caps = copy;
        $self->bucket_cap_count = copy ? count : 0;
    }
}

%immutable ddp_param_desc::shape;
%immutable ddp_param_desc::ndim;
%extend ddp_param_desc {
    /* Sets shape and ndim. */
    void set_shape(const int64_t* extents, size_t count) {
        int64_t* copy = count ? (int64_t*)malloc(count * sizeof *copy) : NULL;
        if (copy) memcpy(copy, extents, count * sizeof *copy);
        DDP_FREE_FIELD($self->shape);
        $self->shape = copy;
        $self->ndim = copy ? (int32_t)count : 0;
    }
}
