/* A GPU's driver without a GPU: devices have contexts, modules name their functions, and a launch notes what it was given.
   A function that is written down here really runs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { DEVICES = 2, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NO_BINARY = 209, INVALID_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719 };

typedef struct { int device; int retained; } Context;
typedef struct { Context* home; char names[256]; } Module;
typedef struct { Context* home; char name[64]; int shared_allowed; } Function;
typedef struct { char name[64]; uint64_t words[3]; unsigned programs, threads; } Launch;
typedef struct { void *handle, *d, *a, *la, *b, *lb, *lc, *out, *workspace; uint64_t algorithm; size_t bytes; int64_t bias; } Product;
typedef struct { int is_product; Launch launch; Product product; } Recorded;
typedef struct { Context* home; int n; Recorded all[64]; } Graph;

static Context contexts[DEVICES] = {{0, 0}, {1, 0}};
static __thread Context* stack[16];
static __thread int depth;
static void* streams[DEVICES];
static char notes[1 << 16];
static int modules_loaded;
static __thread Graph* recording;  /* launches go into it, and run with `cuGraphLaunch` */

EXPORT const char* fake_notes(void) { return notes; }
EXPORT int fake_modules(void) { return modules_loaded; }
EXPORT int fake_depth(void) { return depth; }
EXPORT void fake_forget(void) { notes[0] = 0; }
EXPORT void fake_stream(int device, void* stream) { streams[device] = stream; }
EXPORT void fake_enter(int device) { stack[depth++] = &contexts[device]; }
EXPORT void fake_leave(void) { depth--; }
EXPORT void fake_record(void) { recording = calloc(1, sizeof(Graph)); }
EXPORT Graph* fake_recorded(void) {
    Graph* made = recording;
    recording = NULL;
    return made;
}
static int graphs_alive;
static int records_nothing;
static int graphs_fail;
EXPORT void fake_graphs_fail(int on) { graphs_fail = on; }
EXPORT int fake_graphs(void) { return graphs_alive; }
EXPORT void fake_records_nothing(int on) { records_nothing = on; }

static void note(const char* text) { strncat(notes, text, sizeof notes - strlen(notes) - 1); }

EXPORT int aoti_torch_get_current_cuda_stream(int32_t device, void** out) {
    *out = streams[device];
    return 0;
}
EXPORT int cuInit(unsigned flags) { return flags ? INVALID_VALUE : 0; }
EXPORT int cuDeviceGet(int* out, int ordinal) {
    *out = ordinal + 40;  /* a handle is no ordinal */
    return ordinal < 0 || ordinal >= DEVICES ? INVALID_DEVICE : 0;
}
EXPORT int cuDevicePrimaryCtxRetain(Context** out, int device) {
    *out = &contexts[device - 40];
    (*out)->retained++;
    return 0;
}
EXPORT int cuCtxGetCurrent(Context** out) { *out = depth ? stack[depth - 1] : NULL; return 0; }
EXPORT int cuCtxPushCurrent_v2(Context* c) { stack[depth++] = c; return 0; }
EXPORT int cuCtxPopCurrent_v2(Context** out) { *out = stack[--depth]; return 0; }
EXPORT int cuModuleLoadData(Module** out, const char* image) {
    if (!depth) return INVALID_CONTEXT;
    if (strncmp(image, "module ", 7)) return NO_BINARY;
    *out = calloc(1, sizeof(Module));
    (*out)->home = stack[depth - 1];
    strncpy((*out)->names, image + 7, 255);
    modules_loaded++;
    return 0;
}
EXPORT int cuModuleGetFunction(Function** out, Module* m, const char* name) {
    if (!strstr(m->names, name)) return NOT_FOUND;
    *out = calloc(1, sizeof(Function));
    (*out)->home = m->home;
    (*out)->shared_allowed = 48 << 10;
    strncpy((*out)->name, name, 63);
    return 0;
}
EXPORT int cuFuncSetAttribute(Function* f, int attribute, int value) {
    if (attribute != 8 || value > 227 << 10) return INVALID_VALUE;
    f->shared_allowed = value;
    return 0;
}
EXPORT int cuGetErrorName(int code, const char** out) {
    *out = code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : code == NO_BINARY ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
         : code == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : code == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE" : NULL;
    return *out ? 0 : INVALID_VALUE;
}
EXPORT int cuGetErrorString(int code, const char** out) {
    *out = code == LAUNCH_FAILED ? "unspecified launch failure" : NULL;
    return *out ? 0 : INVALID_VALUE;
}

static void add_one(void** p, unsigned programs, unsigned threads) {
    const float* x = *(float**)p[0];
    float* y = *(float**)p[1];
    int64_t n = *(int64_t*)p[2];
    for (int64_t i = 0; i < n && i < (int64_t)programs * threads; i++) y[i] = x[i] + 1.0f;
}

EXPORT int cuLaunchKernel(Function* f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz, unsigned shared,
                          void* stream, void** p, void** extra) {
    char text[512];
    if (!depth || stack[depth - 1] != f->home) return INVALID_CONTEXT;
    if (extra || !x || !y || !z || ty != 1 || tz != 1 || (int)shared > f->shared_allowed) return INVALID_VALUE;
    if (!strcmp(f->name, "broken")) return LAUNCH_FAILED;
    snprintf(text, sizeof text, "%s device %d grid %u %u %u threads %u shared %u stream %p", f->name, f->home->device, x, y, z, tx,
             shared, stream);
    note(text);
    if (!strcmp(f->name, "numbers")) {
        snprintf(text, sizeof text, " i64 %lld i32 %d f32 %.9g f64 %.17g bool %d null %p", (long long)*(int64_t*)p[1], *(int32_t*)p[2],
                 *(float*)p[3], *(double*)p[4], *(uint8_t*)p[5], *(void**)p[6]);
        note(text);
    }
    if (!strncmp(f->name, "add_one", 7)) {
        if (recording && recording->n < 64) {
            Launch* l = &recording->all[recording->n++].launch;
            recording->home = f->home;
            strcpy(l->name, f->name);
            for (int i = 0; i < 3; i++) l->words[i] = *(uint64_t*)p[i];
            l->programs = x * y * z, l->threads = tx;
        } else add_one(p, x * y * z, tx);
    }
    note("\n");
    return 0;
}

EXPORT int cuStreamIsCapturing(void* stream, int* status) {
    *status = recording != NULL;
    return depth || stream ? 0 : INVALID_CONTEXT;  /* the default stream is that of a context */
}

EXPORT int cuStreamCreate(void** out, unsigned flags) {
    *out = (void*)&recording;
    return flags == 1 && depth ? 0 : INVALID_VALUE;
}
static __thread int thread_mode;
EXPORT int fake_mode(void) { return thread_mode; }
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return 0;
}
EXPORT int cuStreamBeginCapture_v2(void* stream, int mode) {
    if (stream != (void*)&recording || mode != 2 || thread_mode != 2 || recording) return INVALID_VALUE;
    fake_record();
    return 0;
}
EXPORT int cuStreamEndCapture(void* stream, Graph** out) {
    *out = fake_recorded();
    return records_nothing ? LAUNCH_FAILED : 0;
}
EXPORT int cuGraphInstantiateWithFlags(Graph** out, Graph* graph, uint64_t flags) {
    *out = malloc(sizeof(Graph));
    **out = *graph;
    graphs_alive++;
    return flags ? INVALID_VALUE : 0;
}
EXPORT int cuGraphDestroy(Graph* g) { free(g); return 0; }
EXPORT int cuGraphExecDestroy(Graph* g) { free(g); graphs_alive--; return 0; }

/* cuBLASLt: descriptions are tables of attributes, and a product of float32 runs on the host.  An algorithm is the
   alignment that it was chosen for. */
enum { ATTRIBUTES = 32, NOT_ALIGNED = 15, NOT_SUPPORTED_LT = 13, INVALID_VALUE_LT = 7 };
typedef struct { int type; int64_t rows, cols, ld, set[ATTRIBUTES]; } Described;
typedef struct { uint64_t algorithm[8]; size_t workspace; int status; float waves; int reserved[4]; } Choice;

static int lt_alive;
static int lt_refuses;
EXPORT int fake_lt_alive(void) { return lt_alive; }
EXPORT void fake_lt_refuses(int on) { lt_refuses = on; }
EXPORT const char* cublasLtGetStatusString(int status) {
    return status == NOT_SUPPORTED_LT ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE";
}
EXPORT int cublasLtCreate(void** out) { *out = (void*)&lt_alive; return depth ? 0 : 1; }
static int described(Described** out, int type, int64_t rows, int64_t cols, int64_t ld) {
    *out = calloc(1, sizeof(Described));
    (*out)->type = type, (*out)->rows = rows, (*out)->cols = cols, (*out)->ld = ld;
    lt_alive++;
    return 0;
}
static int destroyed(Described* d) { free(d); lt_alive--; return 0; }
static int set(Described* d, int attribute, const void* value, size_t bytes) {
    if (attribute >= ATTRIBUTES || bytes > 8) return INVALID_VALUE_LT;
    d->set[attribute] = 0;
    memcpy(&d->set[attribute], value, bytes);
    return 0;
}
EXPORT int cublasLtMatmulDescCreate(Described** out, int compute, int scale) {
    return compute == 68 && scale == 0 ? described(out, 0, 0, 0, 0) : INVALID_VALUE_LT;
}
EXPORT int cublasLtMatrixLayoutCreate(Described** out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    return described(out, type, rows, cols, ld);
}
EXPORT int cublasLtMatmulPreferenceCreate(Described** out) { return described(out, 0, 0, 0, 0); }
EXPORT int cublasLtMatmulDescDestroy(Described* d) { return destroyed(d); }
EXPORT int cublasLtMatrixLayoutDestroy(Described* d) { return destroyed(d); }
EXPORT int cublasLtMatmulPreferenceDestroy(Described* d) { return destroyed(d); }
EXPORT int cublasLtMatmulDescSetAttribute(Described* d, int a, const void* v, size_t n) { return set(d, a, v, n); }
EXPORT int cublasLtMatrixLayoutSetAttribute(Described* d, int a, const void* v, size_t n) { return set(d, a, v, n); }
EXPORT int cublasLtMatmulPreferenceSetAttribute(Described* d, int a, const void* v, size_t n) { return set(d, a, v, n); }
EXPORT int cublasLtMatmulAlgoGetHeuristic(void* handle, Described* d, Described* a, Described* b, Described* c, Described* out,
                                          Described* preference, int wanted, Choice* choices, int* found) {
    *found = lt_refuses ? 0 : 1;
    if (lt_refuses) return NOT_SUPPORTED_LT;
    if (!depth) return 1;  /* CUBLAS_STATUS_NOT_INITIALIZED: no context */
    for (int i = 5; i <= 8; i++)
        if (preference->set[i] != preference->set[5]) return INVALID_VALUE_LT;
    if (preference->set[3] != 2 || wanted != 1) return INVALID_VALUE_LT;
    if (d->set[8] % preference->set[5]) return INVALID_VALUE_LT;
    choices->algorithm[0] = preference->set[5];
    choices->workspace = preference->set[5] == 16 ? 512 : 1024, choices->status = 0;
    return 0;
}
static float at(const Described* m, const float* p, int transposed, int64_t i, int64_t j) {
    return transposed ? p[j + i * m->ld] : p[i + j * m->ld];
}
static void multiplied(const Product* p) {
    const Described *d = p->d, *la = p->la, *lb = p->lb, *lout = p->lc;
    const float *a = p->a, *b = p->b, *bias = (const float*)p->bias;
    float* out = p->out;
    int ta = d->set[3], tb = d->set[4], batches = lout->set[5] ? lout->set[5] : 1;
    int64_t n = lout->rows, m = lout->cols, k = ta ? la->rows : la->cols;
    memset(p->workspace, 255, p->bytes);  /* nothing else may lie there */
    for (int z = 0; z < batches; z++)
        for (int64_t j = 0; j < m; j++)
            for (int64_t i = 0; i < n; i++) {
                double sum = d->set[7] == 4 ? bias[i] : 0.0;
                for (int64_t q = 0; q < k; q++)
                    sum += (double)at(la, a + z * la->set[6], ta, i, q) * at(lb, b + z * lb->set[6], tb, q, j);
                out[z * lout->set[6] + i + j * lout->ld] = (float)sum;
            }
}
EXPORT int cublasLtMatmul(void* handle, Described* d, const float* alpha, const float* a, Described* la, const float* b, Described* lb,
                          const float* beta, const float* c, Described* lc, float* out, Described* lout, const uint64_t* algorithm,
                          void* workspace, size_t bytes, void* stream) {
    char text[256];
    int ta = d->set[3], tb = d->set[4], batches = lout->set[5] ? lout->set[5] : 1;
    int64_t n = lout->rows, m = lout->cols, k = ta ? la->rows : la->cols;
    if (!depth || *alpha != 1 || *beta != 0 || c != out || lc != lout || la->type || !workspace) return INVALID_VALUE_LT;
    if (n != (ta ? la->cols : la->rows) || m != (tb ? lb->rows : lb->cols) || k != (tb ? lb->cols : lb->rows)) return INVALID_VALUE_LT;
    if (((uintptr_t)a | (uintptr_t)b | (uintptr_t)out) % algorithm[0]) return NOT_ALIGNED;
    snprintf(text, sizeof text, "product %ld %ld %ld batches %d transposed %d %d bias %d alignment %d workspace %ld stream %p\n", (long)m,
             (long)n, (long)k, batches, ta, tb, d->set[7] == 4, (int)algorithm[0], (long)bytes, stream);
    note(text);
    Product p = {handle, d, (void*)a, la, (void*)b, lb, lout, out, workspace, algorithm[0], bytes, d->set[8]};
    if (recording && recording->n < 64) {
        Recorded* r = &recording->all[recording->n++];
        recording->home = stack[depth - 1];
        r->is_product = 1, r->product = p;
    } else multiplied(&p);
    return 0;
}

EXPORT int cuGraphLaunch(Graph* g, void* stream) {
    char text[64];
    if (!depth || (g->n && stack[depth - 1] != g->home)) return INVALID_CONTEXT;
    if (graphs_fail) return OUT_OF_MEMORY;
    snprintf(text, sizeof text, "graph of %d stream %p\n", g->n, stream);
    note(text);
    for (int i = 0; i < g->n; i++) {
        if (g->all[i].is_product) { multiplied(&g->all[i].product); continue; }
        Launch* l = &g->all[i].launch;
        void* p[3] = {&l->words[0], &l->words[1], &l->words[2]};
        add_one(p, l->programs, l->threads);
    }
    return 0;
}
