/* The wrapper of a copy method of host pools: it notes the usual copy, and calls SGLang's method.
 *
 * A copy is usual if an operation of SGLang's makes it, on a pool of which everything is known, with its
 * arguments in their usual places; a load also brings every layer of its pool.
 */

#include "helper.h"

#include <string.h>

/* Return the plan of a pool's method under the operation's settings; NULL if there is none, or on an error. */
static PyObject *plan_of(const Wrapper *self, Running *now, PyObject *pool)
{
    Calls *calls = self->calls;
    PyObject *key = PyLong_FromVoidPtr(pool);
    PyObject *known = key ? PyDict_GetItemWithError(HAS(pools), key) : NULL;
    Py_XDECREF(key);
    if (!known || (PyObject *)Py_TYPE(known) != HAS(DevicePool))
        return NULL;
    PyObject *plan = PyDict_GetItemWithError(OF_POOL(known, plans), self->name);
    if (!plan || (PyObject *)Py_TYPE(plan) != HAS(Plan))
        return NULL;
    int usual = OF_PLAN(plan, usual) == Py_True && Py_IS_TYPE(OF_PLAN(plan, driver), &Driver_Type) &&
                OF_PLAN(plan, probe) == OF_FRAME(now->frame, probe);
    return usual ? Py_NewRef(plan) : NULL;
}

/* Return whether an operation brings each layer of a pool; DeviceCalls.brings_every decides if unsure. */
static int brings_every(Running *now, PyObject *plan, PyObject *pool)
{
    Calls *calls = now->calls;
    PyObject *call = OF_FRAME(now->frame, call), *count = NULL;
    PyObject *owner = PyTuple_GET_ITEM(call, 0), *args = PyTuple_GET_ITEM(call, 2);
    PyObject *transfers = PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : NULL;
    int passes = OF_PLAN(plan, passes) == Py_True;
    if (passes && now->by_engine && transfers && PyList_Check(transfers) && PyList_GET_SIZE(transfers) == 1) {
        PyObject *mapper = PyObject_GetAttr(PyList_GET_ITEM(transfers, 0), n_layer_mapper);
        if (mapper == Py_None)
            count = PyDict_GetItemWithError(PyTuple_GET_ITEM(call, 3), n_transfer_layer_id_max);
        Py_XINCREF(count);
        Py_XDECREF(mapper);
    }
    else if (passes && !now->by_engine && !strcmp(Py_TYPE(owner)->tp_name, "HiCacheController"))
        count = PyObject_GetAttr(owner, n_layer_num);
    int sure = -1;
    if (count)
        sure = PyObject_RichCompareBool(count, OF_PLAN(plan, highest), Py_GT);
    else if (!PyErr_Occurred()) {
        PyObject *given[] = {now->frame, plan, pool};
        PyObject *every = PyObject_Vectorcall(HAS(brings_every), given, 3, NULL);
        sure = every ? PyObject_IsTrue(every) : -1;
        Py_XDECREF(every);
    }
    Py_XDECREF(count);
    return sure;
}

/* Record an event of ours at the begin of a copy whose operation SGLang does not time (Lane.mark). */
static PyObject *marked(Calls *calls, PyObject *plan, PyObject *stream)
{
    const Driver *driver = (Driver *)OF_PLAN(plan, driver);
    PyObject *mark = popped(OF_PLAN(plan, marks));
    int64_t event, on;
    if (!mark)
        return PyErr_Occurred() ? NULL : PyObject_CallMethodOneArg(OF_PLAN(plan, lane), n_mark, stream);
    if (number(PyObject_GetAttr(mark, n_cuda_event), &event) || number(Py_NewRef(stream), &on))
        Py_CLEAR(mark);
    else if (refused(calls, "cuEventRecord", driver->record((uint64_t)event, (uint64_t)on)))
        Py_CLEAR(mark);
    return mark;
}

/* Create the DeviceOp of a copy, as its __init__ does. */
static PyObject *op_of(Running *now, PyObject *plan, PyObject *const *args, Py_ssize_t count,
                       PyObject *names, PyObject *stream)
{
    Calls *calls = now->calls;
    PyObject *op = copy_of(HAS(op));
    if (op && (PUT_OP(op, plan, Py_NewRef(plan)) || PUT_OP(op, frame, Py_NewRef(now->frame)) ||
               PUT_OP(op, owner, Py_NewRef(args[0])) || PUT_OP(op, stream, Py_NewRef(stream)) ||
               PUT_OP(op, host, Py_NewRef(args[2])) || PUT_OP(op, device, Py_NewRef(args[3])) ||
               PUT_OP(op, layers, Py_NewRef(OF_PLAN(plan, all))) ||
               PUT_OP(op, is_aside, Py_NewRef(OF_PLAN(plan, loads))) ||
               PUT_OP(op, args, tuple_of(args + 1, count - 1)) ||
               PUT_OP(op, kwargs, dict_of(args + count, names)) ||
               (OF_PLAN(plan, timed) != Py_True && PUT_OP(op, _mark, marked(calls, plan, stream)))))
        Py_CLEAR(op);
    return op;
}

/* Make a copy part of its operation.
 *
 * All calls of a load are alike: until it ends, SGLang's own method takes our place on the pool.
 */
static int follow(Wrapper *self, Running *now, PyObject *op, PyObject *pool)
{
    Calls *calls = self->calls;
    PyObject *ops = OF_FRAME(now->frame, on_device);
    if (PyList_Append(ops, op) || !self->loads)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *bound = PyMethod_New(self->original, pool);
    int failed = !bound || PyObject_SetAttr(pool, self->name, bound);
    Py_XDECREF(bound);
    if (failed) { /* the Python wrapper notes it again */
        PyObject *error = taken_error();
        Py_ssize_t count = PyList_GET_SIZE(ops);
        (void)PyList_SetSlice(ops, count - 1, count, NULL);
        give_error(error);
    }
    return failed ? -1 : 0;
}

/* Note a copy; returns 0 if it is not usual. */
static int note(Wrapper *self, Running *now, PyObject *plan, PyObject *const *args, Py_ssize_t count,
                PyObject *names)
{
    Calls *calls = self->calls;
    PyObject *host = args[2], *device = args[3], *pool = args[0];
    PyObject *stream = PyObject_CallNoArgs(OF_PLAN(plan, stream));
    int64_t handle, ordinal;
    Tensor ids, hosts;
    int usual = -1, capturing = 0;
    if (stream && !number(Py_NewRef(stream), &handle) && !number(Py_NewRef(OF_PLAN(plan, ordinal)), &ordinal))
        usual = ask(calls, device, &ids);
    if (usual == 1)
        usual = ask(calls, host, &hosts);
    if (usual == 1) {
        const Driver *driver = (Driver *)OF_PLAN(plan, driver);
        usual = ids.count && !driver->capturing((uint64_t)handle, &capturing) && !capturing;
    }
    if (usual == 1 && self->loads)
        usual = brings_every(now, plan, pool);
    if (usual == 1) {
        PyObject *op = op_of(now, plan, args, count, names, stream);
        usual = op && !follow(self, now, op, pool) ? 1 : -1;
        Py_XSETREF(now->op, op);
        now->ids = ids, now->stream = handle;
        now->plain = ids.is_row && ids.device == ordinal && hosts.count == ids.count;
    }
    Py_XDECREF(stream);
    return usual;
}

/* Note that a pool's method has returned. */
static void leave(Running *now, Inside *in)
{
    Calls *calls = now->calls;
    now->inside = in->outer;
    if (!in->told)
        return;
    PyObject *error = taken_error();
    PyObject *pools = PyObject_GetAttr(HAS(frames), n_pools), *key = PyLong_FromVoidPtr(in->pool);
    if (!pools || !key || PySet_Discard(pools, key) < 0)
        PyErr_Clear();
    Py_XDECREF(pools);
    Py_XDECREF(key);
    if (error)
        give_error(error);
}

PyObject *copy(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Wrapper *self = (Wrapper *)callable;
    int64_t since = clock_ns(CLOCK_MONOTONIC);
    Calls *calls = self->calls;
    Running *now = running_of(calls);
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (!now || now->by_python || count < 4)
        return by_python(self, args, flags, names);
    PyObject *pool = args[0];
    for (Inside *in = now->inside; in; in = in->outer)
        if (in->pool == pool) /* a part of that call */
            return PyObject_Vectorcall(self->original, args, flags, names);
    PyObject *plan = plan_of(self, now, pool);
    int wanted = plan && OF_PLAN(plan, wanted) == Py_True;
    int noted = wanted && note(self, now, plan, args, count, names) == 1;
    Py_XDECREF(plan);
    if (plan && !wanted)
        return PyObject_Vectorcall(self->original, args, flags, names);
    if (!noted)
        return left_to_python() ? NULL : by_python(self, args, flags, names);
    PyObject *op = Py_NewRef(now->op);
    Inside in = {.pool = pool, .outer = now->inside};
    now->inside = &in;
    now->cost_ns += clock_ns(CLOCK_MONOTONIC) - since;
    PyObject *result = PyObject_Vectorcall(self->original, args, flags, names);
    leave(now, &in);
    if (!result) {
        PyObject *error = taken_error();
        if (PUT_OP(op, status, status_of(error)))
            PyErr_Clear();
        give_error(error);
    }
    Py_DECREF(op);
    return result;
}
