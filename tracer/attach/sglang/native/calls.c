/* What the wrappers of one attachment share, and how they hand a call to the Python wrappers. */

#include "helper.h"

#include <stddef.h>
#include <structmember.h>

_Thread_local Running *running;

/* Return a clock's time: CLOCK_REALTIME is that of time.time_ns(). */
int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Return this thread's operation, if it is in one. */
Running *running_of(Calls *calls)
{
    Running *now = running;
    while (now && now->calls != calls)
        now = now->outer;
    return now;
}

/* Tell the Python wrappers of an operation that began here: they do the rest of it. */
static int tell_python(Running *now)
{
    Calls *calls = now->calls;
    now->by_python = 1;
    PyObject *pools = PyObject_GetAttr(HAS(frames), n_pools);
    int failed = !pools || PyObject_SetAttr(HAS(frames), n_current, now->frame);
    for (Inside *in = now->inside; in && !failed; in = in->outer) {
        PyObject *key = PyLong_FromVoidPtr(in->pool);
        failed = !key || PySet_Add(pools, key);
        in->told = !failed;
        Py_XDECREF(key);
    }
    Py_XDECREF(pools);
    return failed ? -1 : 0;
}

/* Run a call by its Python wrapper, and with it everything that follows in the same operation. */
PyObject *by_python(Wrapper *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Running *now = running_of(self->calls);
    if (now && !now->by_python && tell_python(now))
        return NULL; /* out of memory */
    if (now)
        return PyObject_Vectorcall(self->python, args, flags, names);
    Running own = {.outer = running, .calls = self->calls, .by_python = 1};
    running = &own;
    PyObject *result = PyObject_Vectorcall(self->python, args, flags, names);
    running = own.outer;
    return result;
}

/* Clear a failure, which the Python wrapper will meet again and count; return -1 for an interrupt. */
int left_to_python(void)
{
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

/* Return the probe while operations are traced and nothing has to be asked before one begins; or NULL. */
PyObject *probe_of(Calls *calls)
{
    PyObject *probe = HAS(probe);
    if (!probe || probe == Py_None)
        return NULL;
    Py_INCREF(probe);
    PyObject *enabled = PyObject_GetAttr(probe, n_enabled);
    if (enabled != Py_True)
        Py_CLEAR(probe);
    Py_XDECREF(enabled);
    return probe;
}

/* Add our own time to what the probe has cost SGLang's threads. */
int add_cost(PyObject *probe, int64_t cost_ns)
{
    PyObject *before = PyObject_GetAttr(probe, n_overhead_s);
    double seconds = before ? PyFloat_AsDouble(before) : -1;
    Py_XDECREF(before);
    if (seconds < 0 && PyErr_Occurred())
        return -1;
    PyObject *after = PyFloat_FromDouble(seconds + (double)cost_ns * 1e-9);
    int failed = !after || PyObject_SetAttr(probe, n_overhead_s, after);
    Py_XDECREF(after);
    return failed ? -1 : 0;
}

/* Count an exception as ours. */
void count_error(PyObject *probe, const char *place, PyObject *error)
{
    PyObject *errors = PyObject_GetAttr(probe, n_errors);
    PyObject *given[] = {errors, PyUnicode_FromString(place), error};
    if (!given[0] || !given[1] || done(PyObject_VectorcallMethod(n_record, given, 3, NULL)))
        PyErr_WriteUnraisable(errors);
    Py_XDECREF(errors);
    Py_XDECREF(given[1]);
}

/* Count the current exception as ours, or keep an interrupt until the operation has ended. */
void mishap(Running *now, const char *place)
{
    Calls *calls = now->calls;
    PyObject *error = taken_error();
    if (!error)
        return;
    if (!PyErr_GivenExceptionMatches(error, PyExc_Exception)) {
        if (!now->interrupt)
            now->interrupt = Py_NewRef(error);
    }
    else
        count_error(OF_FRAME(now->frame, probe), place, error);
    Py_DECREF(error);
}

/* Raise if a call of the driver's has failed. */
int refused(Calls *calls, const char *call, int code)
{
    if (code && !done(PyObject_CallFunction(HAS(check), "si", call, code)))
        PyErr_Format(PyExc_RuntimeError, "%s failed with CUDA error %d", call, code);
    return code ? -1 : 0;
}

PyObject *tuple_of(PyObject *const *args, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
    return tuple;
}

PyObject *dict_of(PyObject *const *values, PyObject *names)
{
    PyObject *dict = PyDict_New();
    for (Py_ssize_t i = 0; dict && names && i < PyTuple_GET_SIZE(names); i++)
        if (PyDict_SetItem(dict, PyTuple_GET_ITEM(names, i), values[i]))
            Py_CLEAR(dict);
    return dict;
}

/* -- the type ------------------------------------------------------------------------------------------ */

static int calls_traverse(PyObject *object, visitproc visit, void *arg)
{
    for (int i = 0; i < HELD_COUNT; i++)
        Py_VISIT(((Calls *)object)->held[i]);
    return 0;
}

static void calls_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    for (int i = 0; i < HELD_COUNT; i++)
        Py_CLEAR(((Calls *)object)->held[i]);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
#define STRING(name) #name,
    static const char *const held[] = {HELD(STRING)}, *const of_frame[] = {FRAME(STRING)};
    static const char *const of_op[] = {OP(STRING)}, *const of_plan[] = {PLAN(STRING)};
    static const char *const of_room[] = {ROOM(STRING)}, *const of_pool[] = {POOL(STRING)};
    static const char *const of_loading[] = {LOADING(STRING)};
    Calls *calls = PyTuple_GET_SIZE(args) ? NULL : (Calls *)type->tp_alloc(type, 0);
    for (int i = 0; calls && i < HELD_COUNT; i++) {
        calls->held[i] = kwargs ? Py_XNewRef(PyDict_GetItemString(kwargs, held[i])) : NULL;
        if (!calls->held[i])
            Py_CLEAR(calls);
    }
    if (!calls)
        return PyErr_Format(PyExc_TypeError, "Calls() takes every attribute by its name");
    if (find_exchange(HAS(exchange)) ||
        find_places((PyObject *)Py_TYPE(HAS(frame)), of_frame, calls->frame, FRAME_COUNT) ||
        find_places((PyObject *)Py_TYPE(HAS(op)), of_op, calls->op, OP_COUNT) ||
        find_places(HAS(Plan), of_plan, calls->plan, PLAN_COUNT) ||
        find_places(HAS(Slot), of_room, calls->room, ROOM_COUNT) ||
        find_places(HAS(DevicePool), of_pool, calls->pool, POOL_COUNT) ||
        find_places((PyObject *)Py_TYPE(HAS(load)), of_loading, calls->loading, LOADING_COUNT))
        Py_CLEAR(calls);
    return (PyObject *)calls;
}

static PyMemberDef calls_members[] = {
    {"probe", T_OBJECT, offsetof(Calls, held[H_probe]), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* Cycles through it are broken elsewhere: it is never without what it holds while a wrapper can be called. */
PyTypeObject Calls_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hicache_dbg_native.Calls",
    .tp_doc = "What the wrappers of one attachment share; probe is None while Python has to be asked.",
    .tp_basicsize = sizeof(Calls),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = calls_new,
    .tp_dealloc = calls_dealloc,
    .tp_traverse = calls_traverse,
    .tp_members = calls_members,
};
