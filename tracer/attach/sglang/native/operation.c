/* The wrapper of a method that is one operation: at its end the digests are enqueued, and the bus is told. */

#include "helper.h"

#include <string.h>

/* Create an operation's Frame, as its __init__ does. */
static PyObject *frame_of(Wrapper *self, PyObject *probe, PyObject *const *args, Py_ssize_t count,
                          PyObject *names)
{
    Calls *calls = self->calls;
    PyObject *frame = copy_of(HAS(frame)), *call = NULL;
    PyObject *given = tuple_of(args + 1, count - 1), *named = dict_of(args + count, names);
    if (given && named)
        call = PyTuple_Pack(4, args[0], self->name, given, named);
    Py_XDECREF(given);
    Py_XDECREF(named);
    if (!frame)
        Py_XDECREF(call);
    else if (PUT_FRAME(frame, call, call) || PUT_FRAME(frame, probe, Py_NewRef(probe)) ||
             PUT_FRAME(frame, op_id, PyIter_Next(HAS(numbers))) ||
             PUT_FRAME(frame, began_ns, PyLong_FromLongLong(clock_ns(CLOCK_REALTIME))) ||
             PUT_FRAME(frame, on_device, PyList_New(0)) ||
             PySet_Add(HAS(running), OF_FRAME(frame, op_id)))
        Py_CLEAR(frame);
    return frame;
}

/* Note the events of an object that has them; before timed events, controllers did not say that theirs are not. */
static int note_those(Calls *calls, PyObject *frame, PyObject *holder, int may_be_old)
{
    PyObject *timed = PyObject_GetAttr(holder, n_timing_enabled);
    if (!timed && may_be_old && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        timed = Py_NewRef(Py_False);
    }
    return PUT_FRAME(frame, timed, timed) ||
           PUT_FRAME(frame, start, PyObject_GetAttr(holder, n_start_event)) ||
           PUT_FRAME(frame, over, PyObject_GetAttr(holder, n_finish_event));
}

/* Note SGLang's events of the operation's begin and end. */
static int note_events(Wrapper *self, PyObject *frame, PyObject *result)
{
    Calls *calls = self->calls;
    PyObject *owner = PyTuple_GET_ITEM(OF_FRAME(frame, call), 0);
    if (self->events == Py_None)
        return note_those(calls, frame, result, 0);
    if (!strcmp(Py_TYPE(owner)->tp_name, "HiCacheController")) {
        PyObject *queue = PyObject_GetAttr(owner, self->queue);
        Py_ssize_t waiting = queue && PyList_Check(queue) ? PyList_GET_SIZE(queue) : 0;
        PyObject *newest = waiting ? Py_NewRef(PyList_GET_ITEM(queue, waiting - 1)) : NULL;
        int noted = newest && !note_those(calls, frame, newest, 1);
        Py_XDECREF(queue);
        Py_XDECREF(newest);
        if (noted)
            return 0;
        PyErr_Clear(); /* an operation of nothing */
    }
    PyObject *given[] = {owner, self->name, result};
    PyObject *events = PyObject_Vectorcall(self->events, given, 3, NULL), *start, *over, *timed;
    int failed = !events || !PyArg_ParseTuple(events, "OOO", &start, &over, &timed) ||
                 PUT_FRAME(frame, start, Py_NewRef(start)) || PUT_FRAME(frame, over, Py_NewRef(over)) ||
                 PUT_FRAME(frame, timed, Py_NewRef(timed));
    Py_XDECREF(events);
    return failed;
}

/* -- the digests --------------------------------------------------------------------------------------- */

/* Return the compiled way of a plan to digest so many indices; NULL if there is none, or on an error. */
static Way *way_of(Running *now, PyObject **at_once)
{
    Calls *calls = now->calls;
    PyObject *plan = OF_OP(now->op, plan), *key = PyLong_FromLongLong(now->ids.count), *known = NULL;
    if (key) {
        known = Py_XNewRef(PyDict_GetItemWithError(OF_PLAN(plan, ways), key));
        if (!known && !PyErr_Occurred()) {
            PyObject *given[] = {plan, OF_OP(now->op, owner), key};
            known = PyObject_VectorcallMethod(n_way, given, 3, NULL);
        }
        Py_DECREF(key);
    }
    *at_once = known;
    if (!known || !PyTuple_Check(known) || !PyTuple_GET_SIZE(known))
        return NULL;
    PyObject *way = PyTuple_GET_ITEM(known, PyTuple_GET_SIZE(known) - 1);
    return Py_IS_TYPE(way, &Way_Type) ? (Way *)way : NULL;
}

/* Note what the operation adds to its way. */
static int work_of(Running *now, Way *way, Work *work)
{
    Calls *calls = now->calls;
    int64_t end, begin = 0;
    if (number(PyObject_GetAttr(OF_FRAME(now->frame, over), n_cuda_event), &end) ||
        (way->during && number(PyObject_GetAttr(OF_FRAME(now->frame, start), n_cuda_event), &begin)))
        return -1;
    work->ids = now->ids.address, work->step = now->ids.step;
    work->begin = (uint64_t)begin, work->end = (uint64_t)end;
    return 0;
}

/* Find how to digest an operation; returns 0 if it is not usual. */
static int usual_way(Running *now, PyObject **at_once, Way **way, Work *work)
{
    Calls *calls = now->calls;
    PyObject *frame = now->frame, *op = now->op, *ops = OF_FRAME(frame, on_device);
    PyObject *ok = OF_FRAME(HAS(frame), status);
    if (now->by_python || !op || !now->plain || PyList_GET_SIZE(ops) != 1 || PyList_GET_ITEM(ops, 0) != op ||
        OF_FRAME(frame, over) == Py_None || OF_FRAME(frame, on_host) != Py_None ||
        OF_FRAME(frame, status) != ok || OF_OP(op, status) != ok)
        return 0;
    *way = way_of(now, at_once);
    if (!*way)
        return PyErr_Occurred() ? -1 : 0;
    if ((*way)->during && OF_FRAME(frame, start) == Py_None)
        return 0;
    return work_of(now, *way, work) ? -1 : 1;
}

/* Take a slot for a way's digests, which a stream may write. */
static PyObject *slot_for(Calls *calls, PyObject *plan, Way *way, PyObject *stream)
{
    PyObject *lane = OF_PLAN(plan, lane), *slot = popped(OF_PLAN(plan, slots));
    int64_t size = 0;
    if (PyErr_Occurred() || (slot && number(Py_NewRef(OF_ROOM(slot, size)), &size)))
        Py_CLEAR(slot);
    else if (size < way->words) {
        PyObject *words = PyLong_FromLongLong(way->words);
        Py_XSETREF(slot, words ? PyObject_CallMethodOneArg(lane, n_slot, words) : NULL);
        Py_XDECREF(words);
    }
    if (!slot)
        return NULL;
    int used = PySet_Contains(OF_ROOM(slot, streams), stream);
    if (!used) {
        PyObject *given[] = {slot, stream, PyObject_GetAttr(lane, n_device)};
        used = given[2] ? done(PyObject_VectorcallMethod(n_used_on, given, 3, NULL)) : -1;
        Py_XDECREF(given[2]);
    }
    if (used < 0)
        Py_CLEAR(slot);
    return slot;
}

/* Enqueue the digests, and note what tells when they are done.
 *
 * The driver's calls keep the GIL, so nothing of another thread's comes between them; what may release it, a
 * new slot, is taken before.
 */
static int digest(Running *now, PyObject *at_once, Way *way, Work *work)
{
    Calls *calls = now->calls;
    PyObject *op = now->op, *frame = now->frame, *plan = OF_OP(op, plan);
    PyObject *on = way->beside ? PyObject_GetItem(OF_PLAN(plan, sides), OF_OP(op, stream))
                               : Py_NewRef(OF_OP(op, stream));
    PyObject *slot = on ? slot_for(calls, plan, way, on) : NULL;
    int64_t stream, own = 0;
    int timed = PyObject_IsTrue(OF_FRAME(frame, timed));
    int failed = !slot || timed < 0 || number(Py_NewRef(on), &stream) ||
                 number(Py_NewRef(OF_ROOM(slot, address)), &work->slot) ||
                 PUT_OP(op, slot, Py_NewRef(slot));
    if (!failed && timed)
        failed = PUT_OP(op, clock, PyTuple_Pack(2, OF_FRAME(frame, start), OF_FRAME(frame, over))) ||
                 PUT_OP(op, handle, PyLong_FromUnsignedLongLong(work->end));
    else if (!failed)
        failed = number(Py_NewRef(OF_ROOM(slot, handle)), &own) ||
                 PUT_OP(op, clock, PyTuple_Pack(2, OF_OP(op, _mark), OF_ROOM(slot, event))) ||
                 PUT_OP(op, handle, Py_NewRef(OF_ROOM(slot, handle)));
    Py_XDECREF(on);
    Py_XDECREF(slot);
    if (failed)
        return -1;
    const char *call;
    work->stream = (uint64_t)stream, work->own = (uint64_t)own;
    int code = enqueue(way, work, &call);
    return refused(calls, call, code) ? -1 : PUT_OP(op, _way, Py_NewRef(at_once));
}

/* -- the end ------------------------------------------------------------------------------------------- */

/* Put our wrapper back in its place, and note at the gates that a pool is loaded (DeviceCalls.loaded). */
static int load_ended(Calls *calls, PyObject *op)
{
    PyObject *plan = OF_OP(op, plan), *loading = PyObject_GetAttr(HAS(gates), n_loading);
    int failed = !loading;
    if (loading && loading != Py_None) {
        PyObject *pages = PyObject_GetAttr(loading, n_pages);
        failed = !pages || !PyDict_SetDefault(pages, OF_PLAN(plan, pool), HAS(no_pages));
        Py_XDECREF(pages);
    }
    Py_XDECREF(loading);
    PyObject *error = failed ? taken_error() : NULL;
    if (PyObject_DelAttr(OF_OP(op, owner), OF_PLAN(plan, method))) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Clear(); /* another load of the same pool has done it */
        else
            failed = 1;
    }
    if (error)
        give_error(error);
    return failed ? -1 : 0;
}

/* Append a copy to the ring of the bus if it has room; returns 0 where Bus.push has to be asked.
 *
 * None of it is Python code, in which a signal's handler could run and raise between the append and its result.
 */
static int pushed_here(PyObject *bus, PyObject *op)
{
    PyObject *stop = PyObject_GetAttr(bus, n__stop), *ring = NULL, *capacity = NULL;
    int kept = -1;
    if (stop == Py_False && (ring = PyObject_GetAttr(bus, n__ring)) &&
        (capacity = PyObject_GetAttr(bus, n__capacity))) {
        Py_ssize_t held = PyObject_Size(ring), most = PyLong_AsSsize_t(capacity);
        if (held >= 0 && !PyErr_Occurred())
            kept = held < most && !done(PyObject_CallMethodOneArg(ring, n_append, op));
    }
    Py_XDECREF(stop);
    Py_XDECREF(ring);
    Py_XDECREF(capacity);
    if (kept != 1)
        PyErr_Clear();
    return kept == 1;
}

/* Give a copy to the bus; returns 0 if it has no room. */
static int push(const Calls *calls, PyObject *method, PyObject *op)
{
    int usual = PyMethod_Check(method) && PyMethod_GET_FUNCTION(method) == HAS(push);
    if (usual && pushed_here(PyMethod_GET_SELF(method), op))
        return 1;
    PyObject *kept = PyObject_CallOneArg(method, op);
    int held = kept ? PyObject_IsTrue(kept) : -1;
    Py_XDECREF(kept);
    return held;
}

/* Tell the bus and the books of a copy; sets `pushed` once the bus has been asked. */
static int tell(Running *now, int *pushed)
{
    Calls *calls = now->calls;
    PyObject *op = now->op, *plan = OF_OP(op, plan);
    if (OF_PLAN(plan, loads) == Py_True && load_ended(calls, op))
        return -1;
    int timed = PyObject_IsTrue(OF_FRAME(now->frame, timed));
    if (timed < 0 || PUT_PLAN(plan, timed, PyBool_FromLong(timed)))
        return -1;
    void *over = PyTuple_GET_ITEM(OF_OP(op, args), 0);
    if (PyLong_AsVoidPtr(OF_PLAN(plan, over)) != over && done(PyObject_CallOneArg(HAS(moved_over), op)))
        return -1;
    int held = push(calls, OF_PLAN(plan, push), op);
    if (held < 0)
        return -1;
    *pushed = 1;
    if (!held)
        return done(PyObject_CallMethodNoArgs(op, n_drop));
    PyObject *copies = PyObject_GetItem(HAS(under_way), OF_OP(op, stream));
    int failed = !copies || done(PyObject_CallMethodOneArg(copies, n_append, op));
    Py_XDECREF(copies);
    return failed ? -1 : 0;
}

/* End the usual operation, as DeviceCalls.end does. */
static void end_usual(Running *now, PyObject *at_once, Way *way, Work *work)
{
    static const char place[] = "digest/device";
    Calls *calls = now->calls;
    PyObject *frame = now->frame, *op = now->op;
    int pushed = 0;
    if (PUT_FRAME(frame, ended_ns, PyLong_FromLongLong(clock_ns(CLOCK_REALTIME))) ||
        PUT_FRAME(frame, whom, PyObject_GetAttr(HAS(here), n_carried)) ||
        PUT_FRAME(frame, thread, PyObject_GetAttr(HAS(frames), n_thread)) ||
        PUT_OP(op, moment, PyObject_GetAttr(HAS(history), n_now)) ||
        done(PyObject_CallOneArg(HAS(begun), OF_OP(op, moment)))) {
        mishap(now, place);
        if (OF_OP(op, is_aside) == Py_True && load_ended(calls, op))
            mishap(now, place);
    }
    else {
        if (digest(now, at_once, way, work)) {
            mishap(now, place);
            if (done(PyObject_CallMethodNoArgs(op, n_give_up)))
                mishap(now, place);
        }
        if (tell(now, &pushed)) {
            mishap(now, place);
            if (!pushed && done(PyObject_CallMethodNoArgs(op, n_drop)))
                mishap(now, place);
        }
    }
    /* The copy refers to the frame: no cycle is left to the garbage collector. */
    if (PyList_SetSlice(OF_FRAME(frame, on_device), 0, 1, NULL))
        mishap(now, place);
    if (PySet_Discard(HAS(running), OF_FRAME(frame, op_id)) < 0)
        mishap(now, place);
}

/* Leave an operation's end to DeviceCalls.end, which adds what it has cost so far. */
static int end_in_python(Running *now)
{
    Calls *calls = now->calls;
    double before = PyFloat_AsDouble(OF_FRAME(now->frame, cost_s));
    PyObject *cost = PyErr_Occurred() ? NULL : PyFloat_FromDouble(before + (double)now->cost_ns * 1e-9);
    if (PUT_FRAME(now->frame, cost_s, cost))
        PyErr_Clear();
    return done(PyObject_CallOneArg(HAS(end), now->frame));
}

/* End an operation; return whether that was done here, rather than by DeviceCalls.end. */
static int end(Running *now)
{
    Calls *calls = now->calls;
    PyObject *at_once = NULL, *frame = now->frame;
    Way *way;
    Work work;
    if (!now->by_python && !PyList_GET_SIZE(OF_FRAME(frame, on_device))) { /* an operation of nothing */
        if (PySet_Discard(HAS(running), OF_FRAME(frame, op_id)) < 0)
            mishap(now, "digest/device");
        return 1;
    }
    int usual = usual_way(now, &at_once, &way, &work);
    if (usual == 1)
        end_usual(now, at_once, way, &work);
    else {
        if (usual < 0 && left_to_python())
            mishap(now, "digest/device");
        if (end_in_python(now))
            mishap(now, "digest/device");
    }
    Py_XDECREF(at_once);
    return usual == 1;
}

PyObject *operation(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    static const char place[] = "attach/operation";
    int64_t since = clock_ns(CLOCK_MONOTONIC);
    Wrapper *self = (Wrapper *)callable;
    Calls *calls = self->calls;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    Running *outer = running_of(calls);
    if (outer && !outer->by_python) /* a part of that */
        return PyObject_Vectorcall(self->original, args, flags, names);
    PyObject *probe = !outer && count ? probe_of(calls) : NULL;
    PyObject *frame = probe ? frame_of(self, probe, args, count, names) : NULL;
    Py_XDECREF(probe);
    if (!frame)
        return left_to_python() ? NULL : by_python(self, args, flags, names);
    Running now = {
        .outer = running, .calls = calls, .frame = frame, .by_engine = self->events == Py_None};
    running = &now;
    now.cost_ns = clock_ns(CLOCK_MONOTONIC) - since;
    PyObject *result = PyObject_Vectorcall(self->original, args, flags, names);
    since = clock_ns(CLOCK_MONOTONIC);
    running = now.outer;
    PyObject *error = result ? NULL : taken_error();
    if (error ? PUT_FRAME(frame, status, status_of(error)) : note_events(self, frame, result))
        mishap(&now, place);
    int64_t until = clock_ns(CLOCK_MONOTONIC);
    now.cost_ns += until - since;
    since = end(&now) ? until - now.cost_ns : clock_ns(CLOCK_MONOTONIC);
    if (self->loads && load_sent(&now))
        mishap(&now, place);
    if (add_cost(OF_FRAME(frame, probe), clock_ns(CLOCK_MONOTONIC) - since))
        mishap(&now, place);
    Py_XDECREF(now.op);
    Py_DECREF(frame);
    if (now.interrupt) {
        if (error)
            PyException_SetContext(now.interrupt, error);
        error = now.interrupt;
        Py_CLEAR(result);
    }
    if (error)
        give_error(error);
    return result;
}
