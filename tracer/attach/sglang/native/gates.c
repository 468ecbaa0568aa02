/* The layer gates of a load: it begins (Gates.begins), and has submitted all its layers (Gates.sent). */

#include "helper.h"

/* -- a load begins --------------------------------------------------------------------------------------- */

/* Return whether a call came from where the last one did: the same frames at the same instructions. */
static int same_site(PyObject *chain, PyFrameObject *frame)
{
    PyFrameObject *at = (PyFrameObject *)Py_NewRef(frame);
    Py_ssize_t i = 0, count = PyTuple_GET_SIZE(chain);
    while (at && i < count) {
        PyCodeObject *code = PyFrame_GetCode(at);
        int same = (PyObject *)code == PyTuple_GET_ITEM(chain, i) &&
                   PyLong_AsLong(PyTuple_GET_ITEM(chain, i + 1)) == PyFrame_GetLasti(at);
        Py_DECREF(code);
        if (!same)
            break;
        i += 2;
        PyFrameObject *back = i < count ? PyFrame_GetBack(at) : NULL;
        Py_SETREF(at, back);
    }
    Py_XDECREF(at);
    return i == count;
}

/* Add a frame's code and instruction to a chain; returns whether it is outside the attachments. */
static int add_frame(Calls *calls, PyObject *chain, PyFrameObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    PyObject *at = PyLong_FromLong(PyFrame_GetLasti(frame));
    Py_ssize_t inside = PyUnicode_Tailmatch(code->co_filename, HAS(ours), 0, PY_SSIZE_T_MAX, -1);
    int failed = !at || inside < 0 || PyList_Append(chain, (PyObject *)code) || PyList_Append(chain, at);
    Py_DECREF(code);
    Py_XDECREF(at);
    return failed ? -1 : !inside;
}

/* Return the frames that call_site.access looks at; None if it sees the last one of the thread. */
static PyObject *chain_of(Calls *calls, PyFrameObject *frame)
{
    PyFrameObject *at = (PyFrameObject *)Py_NewRef(frame);
    PyObject *chain = PyList_New(0);
    int64_t left;
    int failed = !chain || number(Py_NewRef(HAS(depth)), &left);
    while (!failed && at && left > 0) {
        int outside = add_frame(calls, chain, at);
        failed = outside < 0;
        left -= outside > 0;
        PyFrameObject *back = PyFrame_GetBack(at);
        Py_SETREF(at, back);
    }
    Py_XDECREF(at);
    PyObject *whole = failed ? NULL : left ? Py_NewRef(Py_None) : PyList_AsTuple(chain);
    Py_XDECREF(chain);
    return whole;
}

/* Return where a load of this set begins (Gates.site), which is what it was if the same code does. */
static PyObject *site_of(Calls *calls, PyObject *index, PyFrameObject *frame)
{
    PyObject *sites = PyObject_GetAttr(HAS(gates), n_sites), *site = NULL;
    PyObject *known = sites && PyDict_Check(sites) ? Py_XNewRef(PyDict_GetItemWithError(sites, index)) : NULL;
    if (known && same_site(PyTuple_GET_ITEM(known, 0), frame))
        site = Py_NewRef(PyTuple_GET_ITEM(known, 1));
    else if (sites && !PyErr_Occurred() && (site = PyObject_CallOneArg(HAS(site), index))) {
        PyObject *chain = chain_of(calls, frame);
        PyObject *both = chain && chain != Py_None ? PyTuple_Pack(2, chain, site) : NULL;
        if (!chain || (chain != Py_None && !both) || (both && PyObject_SetItem(sites, index, both)))
            Py_CLEAR(site);
        Py_XDECREF(chain);
        Py_XDECREF(both);
    }
    Py_XDECREF(sites);
    Py_XDECREF(known);
    return site;
}

/* Create the Loading of a counter's set, as its __init__ does. */
static PyObject *loading_of(Calls *calls, PyObject *counter, PyObject *index, PyFrameObject *frame)
{
    PyObject *loading = copy_of(HAS(load));
    if (loading && (PUT_LOADING(loading, layers, PyObject_GetAttr(counter, n_num_layers)) ||
                    PUT_LOADING(loading, by, site_of(calls, index, frame)) ||
                    PUT_LOADING(loading, pages, PyDict_New()) || PUT_LOADING(loading, passed, PyDict_New())))
        Py_CLEAR(loading);
    return loading;
}

/* Put SGLang's own `complete` in its place for this load (Gates._let_pass). */
static int let_pass(Calls *calls, PyObject *loading, PyObject *events)
{
    PyObject *bound = PyObject_GetAttr(events, n_complete);
    PyObject *usual = bound ? PyObject_GetAttr((PyObject *)Py_TYPE(events), n_complete) : NULL;
    PyObject *own = usual ? PyObject_GetAttr(HAS(gating), n__complete) : NULL;
    PyObject *function = bound && PyMethod_Check(bound) ? PyMethod_GET_FUNCTION(bound) : NULL;
    int failed = !own;
    if (own && own != Py_None && function && (function == usual || function == own)) {
        PyObject *made = PyMethod_New(own, events);
        PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
        PyObject *both = made && thread ? PyTuple_Pack(2, thread, events) : NULL;
        failed = !both || PyObject_SetAttr(events, n_complete, made) ||
                 PyDict_SetItem(HAS(sending), loading, both);
        Py_XDECREF(made);
        Py_XDECREF(thread);
        Py_XDECREF(both);
    }
    Py_XDECREF(bound);
    Py_XDECREF(usual);
    Py_XDECREF(own);
    return failed ? -1 : 0;
}

/* Make a load the thread's, in place of one that nobody followed to its end. */
static int follow(Calls *calls, PyObject *loading, PyObject *events, PyObject *key)
{
    PyObject *before = PyObject_GetAttr(HAS(gates), n_loading);
    int stale = before ? PyDict_Contains(HAS(sending), before) : -1;
    int failed = PyDict_SetItem(HAS(current), key, loading) || PyDict_SetItem(HAS(on_way), events, loading) ||
                 stale < 0 || (stale && PyDict_DelItem(HAS(sending), before)) ||
                 PyObject_SetAttr(HAS(gates), n_loading, loading) || let_pass(calls, loading, events);
    Py_XDECREF(before);
    return failed ? -1 : 0;
}

/* Note that a load begins; returns 0 if it is not usual. */
static int begin(Calls *calls, PyObject *counter, PyObject *index, PyFrameObject *frame)
{
    PyObject *sets = PyObject_GetAttr(counter, n_events);
    Py_ssize_t at = sets && PyList_Check(sets) ? PyLong_AsSsize_t(index) : -1;
    PyObject *events = at >= 0 && at < PyList_GET_SIZE(sets) ? Py_NewRef(PyList_GET_ITEM(sets, at)) : NULL;
    PyObject *key = events ? PyLong_FromVoidPtr(events) : NULL;
    int usual = PyErr_Occurred() ? -1 : key ? PyDict_Contains(HAS(current), key) : 0;
    if (usual == 1) {
        PyObject *loading = loading_of(calls, counter, index, frame);
        usual = loading && !follow(calls, loading, events, key) ? 1 : -1;
        Py_XDECREF(loading);
    }
    Py_XDECREF(sets);
    Py_XDECREF(events);
    Py_XDECREF(key);
    return usual;
}

/* Return whether a frame is one of SGLang's functions that submit a load layer by layer. */
static int is_loop(Calls *calls, PyFrameObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    int known = PyDict_Contains(HAS(loops), code->co_name);
    Py_DECREF(code);
    return known;
}

/* Note that a load begins, here or in Python; only an interrupt is a failure. */
static int note(Calls *calls, PyObject *probe, PyObject *counter, PyObject *index)
{
    int64_t since = clock_ns(CLOCK_MONOTONIC);
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    int usual = frame && PyLong_CheckExact(index) ? is_loop(calls, frame) : 0;
    if (usual == 1)
        usual = begin(calls, counter, index, frame);
    int failed = usual < 0 && left_to_python();
    if (usual == 1 && add_cost(probe, clock_ns(CLOCK_MONOTONIC) - since)) {
        PyObject *error = taken_error();
        count_error(probe, "attach/load begins", error);
        Py_DECREF(error);
    }
    if (usual != 1 && !failed) {
        PyObject *given[] = {counter, index, frame ? (PyObject *)frame : Py_None};
        failed = done(PyObject_Vectorcall(HAS(begins), given, 3, NULL));
    }
    Py_XDECREF(frame);
    return failed ? -1 : 0;
}

/* The wrapper of LayerDoneCounter.update_producer. */
PyObject *production(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Wrapper *self = (Wrapper *)callable;
    PyObject *probe = PyVectorcall_NARGS(flags) == 1 && !names ? probe_of(self->calls) : NULL;
    if (!probe)
        return left_to_python() ? NULL : PyObject_Vectorcall(self->python, args, flags, names);
    PyObject *index = PyObject_Vectorcall(self->original, args, flags, names);
    if (index && note(self->calls, probe, args[0], index))
        Py_CLEAR(index);
    Py_DECREF(probe);
    return index;
}

/* -- all its layers have been submitted ------------------------------------------------------------------ */

/* Find how many layers a load goes through (versions.layers_sent); returns 0 if it is not usual. */
static int layers_of(Running *now, int64_t *layers)
{
    Calls *calls = now->calls;
    PyObject *call = OF_FRAME(now->frame, call), *named = PyTuple_GET_ITEM(call, 3), *count;
    if (!now->by_engine)
        count = PyObject_GetAttr(PyTuple_GET_ITEM(call, 0), n_layer_num);
    else if (!(count = Py_XNewRef(PyDict_GetItemWithError(named, n_transfer_layer_id_max))))
        count = PyErr_Occurred() ? NULL : Py_XNewRef(PyDict_GetItemWithError(named, n_layer_num));
    if (!count)
        return PyErr_Occurred() ? -1 : 0;
    if (!PyLong_CheckExact(count)) {
        Py_DECREF(count);
        return 0;
    }
    return number(count, layers) ? -1 : *layers > 0;
}

/* Open the gates of a load, and take SGLang's own `complete` off its events. */
static int open_all(Calls *calls, PyObject *loading, PyObject *events, int64_t layers)
{
    int64_t opened, most;
    int failed = number(Py_NewRef(OF_LOADING(loading, layers)), &most) ||
                 number(Py_NewRef(OF_LOADING(loading, opened)), &opened);
    int64_t last = (layers < most ? layers : most) - 1;
    if (!failed && last > opened)
        failed = PUT_LOADING(loading, opened, PyLong_FromLongLong(last));
    if (!failed && PyObject_DelAttr(events, n_complete)) {
        failed = !PyErr_ExceptionMatches(PyExc_AttributeError);
        if (!failed)
            PyErr_Clear(); /* somebody else has done it */
    }
    return failed ? -1 : 0;
}

/* Note that this thread's load, if it is in one, has submitted all its layers. */
int load_sent(Running *now)
{
    Calls *calls = now->calls;
    PyObject *loading = PyObject_GetAttr(HAS(gates), n_loading), *sender = NULL;
    int64_t layers;
    if (!loading || loading == Py_None) {
        Py_XDECREF(loading);
        return loading ? 0 : -1;
    }
    int usual = Py_IS_TYPE(loading, Py_TYPE(HAS(load))) ? layers_of(now, &layers) : 0;
    int failed = usual < 0 && left_to_python();
    if (usual == 1) {
        sender = Py_XNewRef(PyDict_GetItemWithError(HAS(sending), loading));
        failed = PyErr_Occurred() || PyObject_SetAttr(HAS(gates), n_loading, Py_None) ||
                 (sender && (PyDict_DelItem(HAS(sending), loading) ||
                             open_all(calls, loading, PyTuple_GET_ITEM(sender, 1), layers)));
    }
    else if (!failed)
        failed = done(PyObject_CallObject(HAS(sent), OF_FRAME(now->frame, call)));
    Py_XDECREF(sender);
    Py_DECREF(loading);
    return failed ? -1 : 0;
}
