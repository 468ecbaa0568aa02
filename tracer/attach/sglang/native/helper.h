/* The usual operation of SGLang on a GPU, without our Python: what the parts share.
 *
 * A function that returns an int returns -1, and one that returns an object NULL, with a Python exception set.
 * Everything runs with the GIL held. Only what SGLang's functions and ours in Python do may release it.
 */
#ifndef HICACHE_DBG_HELPER_H
#define HICACHE_DBG_HELPER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <time.h>

/* -- objects.c: Python's objects ----------------------------------------------------------------------- */

/* Attributes and methods that are asked for by name. */
#define NAMES(X) \
    X(__dict__) X(_capacity) X(_ring) X(_stop) X(append) X(carried) X(cuda_event) X(current) \
    X(device) X(drop) X(enabled) X(errors) X(events) X(finish_event) X(give_up) X(layer_mapper) X(layer_num) \
    X(loading) X(mark) X(node_ids) X(now) X(num_layers) X(overhead_s) X(pages) X(pools) X(pop) X(record) \
    X(sites) X(slot) X(start_event) X(thread) X(timing_enabled) X(transfer_layer_id_max) X(used_on) X(way)
#define DECLARE(name) extern PyObject *n_##name;
NAMES(DECLARE)

/* What a slot holds, by its place in the object; it is never NULL in what our classes have constructed. */
#define SLOT(object, place) (*(PyObject **)((char *)(object) + (place)))

int intern_names(void);
int find_places(PyObject *cls, const char *const *names, Py_ssize_t *places, int count);
PyObject *copy_of(PyObject *pattern);
int put(PyObject *object, Py_ssize_t place, PyObject *stolen);
int number(PyObject *stolen, int64_t *value);
int done(PyObject *stolen);
PyObject *popped(PyObject *deque);
PyObject *taken_error(void);
void give_error(PyObject *stolen);
PyObject *status_of(PyObject *error);

/* -- driver.c: calls of the CUDA driver ---------------------------------------------------------------- */

/* Functions of the driver, by their addresses; each returns 0 for success. */
typedef struct {
    PyObject_HEAD
    int (*wait)(uint64_t stream, uint64_t event, unsigned flags);
    int (*record)(uint64_t event, uint64_t stream);
    int (*launch)(void *config, void *function, void **parameters, void *extra);
    int (*capturing)(uint64_t stream, int *status);
} Driver;

#define MOST_PARAMETERS 24

/* A launch: CUlaunchConfig, the kernel's parameters, and their addresses. */
typedef struct {
    uint64_t function;
    struct {
        uint32_t grid[3], block[3], shared;
        uint64_t stream, attributes, count;
    } config;
    int64_t values[MOST_PARAMETERS];
    void *pointers[MOST_PARAMETERS];
    int64_t offset; /* of its digests in the slot, in bytes */
} Launch;

/* How to digest so many indices in one launch a component (gpu_plans.AtOnce), ready for the driver. */
typedef struct {
    PyObject_VAR_HEAD
    Driver *driver;
    int64_t start, unit, words;
    int beside, during;
    Launch launches[];
} Way;

/* What an operation adds to its way: handles of events and of the stream, and addresses. */
typedef struct {
    uint64_t begin, end, own; /* SGLang's events, and ours if those do not tell the time */
    uint64_t stream;          /* where the digests run */
    int64_t ids, step;        /* the device indices and their stride */
    int64_t slot;             /* where the digests go */
} Work;

extern PyTypeObject Driver_Type, Way_Type;
int enqueue(Way *way, const Work *work, const char **call);

/* -- calls.c: what the wrappers of one attachment share ------------------------------------------------ */

/* Objects that helper.py gives by these names, and says what they are. */
#define HELD(X) \
    X(probe) X(pools) X(frames) X(here) X(gates) X(history) X(begun) X(running) X(under_way) X(numbers) \
    X(frame) X(op) X(DevicePool) X(Plan) X(Slot) X(Tensor) X(exchange) X(brings_every) X(end) X(moved_over) \
    X(sent) X(check) X(no_pages) X(push) X(current) X(on_way) X(load) X(begins) \
    X(site) X(loops) X(ours) X(depth) X(divides)
/* Slots of Frame, DeviceOp, Plan, Slot, DevicePool and Loading. */
#define FRAME(X) \
    X(probe) X(call) X(op_id) X(began_ns) X(cost_s) X(on_device) X(on_host) X(start) X(over) X(timed) \
    X(status) X(ended_ns) X(thread) X(whom)
#define OP(X) \
    X(plan) X(frame) X(owner) X(host) X(device) X(args) X(kwargs) X(layers) X(stream) X(moment) X(_mark) \
    X(status) X(slot) X(handle) X(clock) X(_way) X(is_aside)
#define PLAN(X) \
    X(probe) X(wanted) X(usual) X(method) X(stream) X(all) X(loads) X(lane) X(ordinal) X(timed) X(over) \
    X(ways) X(driver) X(push) X(pool) X(marks) X(slots) X(sides) X(passes) X(highest)
#define ROOM(X) X(size) X(address) X(handle) X(event) X(streams)
#define POOL(X) X(plans)
#define LOADING(X) X(layers) X(by) X(pages) X(opened) X(passed) X(sender)

#define H_NAME(name) H_##name,
#define F_NAME(name) F_##name,
#define O_NAME(name) O_##name,
#define P_NAME(name) P_##name,
#define R_NAME(name) R_##name,
#define D_NAME(name) D_##name,
#define L_NAME(name) L_##name,
enum { HELD(H_NAME) HELD_COUNT };
enum { FRAME(F_NAME) FRAME_COUNT };
enum { OP(O_NAME) OP_COUNT };
enum { PLAN(P_NAME) PLAN_COUNT };
enum { ROOM(R_NAME) ROOM_COUNT };
enum { POOL(D_NAME) POOL_COUNT };
enum { LOADING(L_NAME) LOADING_COUNT };

typedef struct {
    PyObject_HEAD
    PyObject *held[HELD_COUNT];
    Py_ssize_t frame[FRAME_COUNT], op[OP_COUNT], plan[PLAN_COUNT], room[ROOM_COUNT], pool[POOL_COUNT];
    Py_ssize_t loading[LOADING_COUNT];
} Calls;

/* In a function with `calls`: an object by its name, and the slots of others by theirs. */
#define HAS(name) (calls->held[H_##name])
#define OF_FRAME(object, name) SLOT(object, calls->frame[F_##name])
#define OF_OP(object, name) SLOT(object, calls->op[O_##name])
#define OF_PLAN(object, name) SLOT(object, calls->plan[P_##name])
#define OF_ROOM(object, name) SLOT(object, calls->room[R_##name])
#define OF_POOL(object, name) SLOT(object, calls->pool[D_##name])
#define OF_LOADING(object, name) SLOT(object, calls->loading[L_##name])
#define PUT_FRAME(object, name, value) put(object, calls->frame[F_##name], value)
#define PUT_OP(object, name, value) put(object, calls->op[O_##name], value)
#define PUT_PLAN(object, name, value) put(object, calls->plan[P_##name], value)
#define PUT_LOADING(object, name, value) put(object, calls->loading[L_##name], value)

/* -- tensors.c: what torch says of a tensor -------------------------------------------------------------- */

typedef struct {
    int64_t count, device, address, step; /* its elements; -1 is the CPU; step is 0 unless is_row */
    int is_row;                           /* whether it has one dimension, of int64 */
} Tensor;

int find_exchange(PyObject *capsule);
int ask(Calls *calls, PyObject *object, Tensor *tensor);

/* -- what an operation is while it runs ------------------------------------------------------------------ */

/* A pool whose method is running. */
typedef struct inside {
    PyObject *pool;
    struct inside *outer;
    int told; /* whether the Python wrappers know */
} Inside;

/* An operation that this thread is in, on the C stack of its wrapper; at most one an attachment. */
typedef struct running {
    struct running *outer;
    Calls *calls;
    PyObject *frame; /* NULL if the Python wrapper began it */
    int by_python;   /* whether the Python wrappers do the rest */
    int by_engine;   /* whether its method returns SGLang's events */
    Inside *inside;
    int64_t cost_ns;       /* our own time so far */
    PyObject *op;          /* the last copy noted */
    int64_t stream;        /* its stream */
    Tensor ids;            /* its device indices */
    int plain;             /* whether a launch can read them */
    PyObject *interrupt;   /* an exception that is not a failure, such as KeyboardInterrupt */
} Running;

/* A function of ours in place of one of SGLang's. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *dict, *weak;
    Calls *calls;
    PyObject *original, *python, *name; /* SGLang's function, our Python wrapper of it, its name */
    PyObject *events; /* returns an operation's events; None if its result has them */
    PyObject *queue;  /* where a plain controller keeps them, newest last; or what it is to process */
    PyObject *nodes;  /* the requests of what is in a queue (RequestTracker.nodes) */
    int loads;
} Wrapper;

extern PyTypeObject Calls_Type, Wrapper_Type;
extern _Thread_local Running *running;

int64_t clock_ns(clockid_t clock);
Running *running_of(Calls *calls);
PyObject *by_python(Wrapper *self, PyObject *const *args, size_t flags, PyObject *names);
int left_to_python(void);
PyObject *probe_of(Calls *calls);
int add_cost(PyObject *probe, int64_t cost_ns);
void count_error(PyObject *probe, const char *place, PyObject *error);
void mishap(Running *now, const char *place);
int refused(Calls *calls, const char *call, int code);
PyObject *tuple_of(PyObject *const *args, Py_ssize_t count);
PyObject *dict_of(PyObject *const *values, PyObject *names);

/* -- copy.c, operation.c, queue.c, gates.c: the kinds of wrappers --------------------------------------- */

PyObject *copy(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names);
PyObject *operation(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names);
PyObject *queue(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names);
PyObject *production(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names);

int load_sent(Running *now);

#endif
