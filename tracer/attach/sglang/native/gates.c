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
static PyObject *site_of(Calls *calls, PyObject *here, PyObject *index, PyFrameObject *frame)
{
    PyObject *sites = Py_XNewRef(PyDict_GetItemWithError(here, n_sites)), *site = NULL;
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

/* Return a Loading without layers, as its __init__ leaves one: the set's last one, if nobody looks at it. */
static PyObject *empty(Calls *calls, PyObject *events, PyObject *key)
{
    PyObject *load = Py_XNewRef(PyDict_GetItemWithError(HAS(current), key));
    PyObject *coming = load ? PyDict_GetItemWithError(HAS(on_way), events) : NULL;
    if (PyErr_Occurred())
        Py_CLEAR(load);
    else if (load && Py_IS_TYPE(load, Py_TYPE(HAS(load))) && Py_REFCNT(load) == (coming == load) + 2) {
        PyDict_Clear(OF_LOADING(load, pages));
        PyDict_Clear(OF_LOADING(load, passed));
        (void)PUT_LOADING(load, opened, Py_NewRef(OF_LOADING(HAS(load), opened)));
    }
    else {
        Py_XSETREF(load, copy_of(HAS(load)));
        if (load && (PUT_LOADING(load, pages, PyDict_New()) || PUT_LOADING(load, passed, PyDict_New())))
            Py_CLEAR(load);
    }
    return load;
}

/* Note that a load begins in these events, in a frame of the thread whose state of the gates is `here`. */
static int begin(Calls *calls, PyObject *here, PyObject *counter, PyObject *index, PyObject *events,
                 PyObject *key, PyFrameObject *frame)
{
    PyObject *layers = PyObject_GetAttr(counter, n_num_layers);
    PyObject *site = layers ? site_of(calls, here, index, frame) : NULL;
    PyObject *thread = site ? PyLong_FromUnsignedLong(PyThread_get_thread_ident()) : NULL;
    PyObject *load = thread ? empty(calls, events, key) : NULL;
    int failed = !load;
    if (load) {
        (void)PUT_LOADING(load, layers, Py_NewRef(layers));
        (void)PUT_LOADING(load, by, Py_NewRef(site));
        (void)PUT_LOADING(load, sender, Py_NewRef(thread));
        failed = PyDict_SetItem(HAS(current), key, load) || PyDict_SetItem(HAS(on_way), events, load) ||
                 PyDict_SetItem(here, n_loading, load);
    }
    Py_XDECREF(layers);
    Py_XDECREF(site);
    Py_XDECREF(thread);
    Py_XDECREF(load);
    return failed ? -1 : 0;
}

/* Note that a load begins in a set of a counter's; returns 0 if that is not usual. */
static int begin_usual(Calls *calls, PyObject *counter, PyObject *index, PyFrameObject *frame)
{
    PyObject *here = PyObject_GetAttr(HAS(gates), n___dict__); /* this thread's */
    PyObject *sets = here ? PyObject_GetAttr(counter, n_events) : NULL;
    Py_ssize_t at = sets && PyList_Check(sets) ? PyLong_AsSsize_t(index) : -1;
    PyObject *events = at >= 0 && at < PyList_GET_SIZE(sets) ? Py_NewRef(PyList_GET_ITEM(sets, at)) : NULL;
    PyObject *key = events ? PyLong_FromVoidPtr(events) : NULL;
    int ended = key && PyDict_GetItemWithError(here, n_loading) == Py_None;
    int usual = PyErr_Occurred() ? -1 : ended ? PyDict_Contains(HAS(current), key) : 0;
    if (usual == 1 && begin(calls, here, counter, index, events, key, frame))
        usual = -1;
    Py_XDECREF(here);
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
        usual = begin_usual(calls, counter, index, frame);
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

/* Open the gates of a load that went through so many layers (Loading.sent). */
static int open_all(Calls *calls, PyObject *loading, int64_t layers)
{
    int64_t opened, most;
    if (number(Py_NewRef(OF_LOADING(loading, layers)), &most) ||
        number(Py_NewRef(OF_LOADING(loading, opened)), &opened))
        return -1;
    int64_t last = (layers < most ? layers : most) - 1;
    if (last > opened && PUT_LOADING(loading, opened, PyLong_FromLongLong(last)))
        return -1;
    return PUT_LOADING(loading, sender, PyLong_FromLong(0));
}

/* Note that this thread's load, if it is in one, has submitted all its layers. */
int load_sent(Running *now)
{
    Calls *calls = now->calls;
    PyObject *here = PyObject_GetAttr(HAS(gates), n___dict__); /* this thread's */
    PyObject *load = here ? Py_XNewRef(PyDict_GetItemWithError(here, n_loading)) : NULL;
    int64_t layers, sender;
    int failed = !here || (!load && PyErr_Occurred());
    if (load && load != Py_None) {
        int usual = Py_IS_TYPE(load, Py_TYPE(HAS(load))) ? layers_of(now, &layers) : 0;
        failed = usual < 0 && left_to_python();
        if (usual == 1)
            failed = PyDict_SetItem(here, n_loading, Py_None) ||
                     number(Py_NewRef(OF_LOADING(load, sender)), &sender) ||
                     (sender && open_all(calls, load, layers));
        else if (!failed)
            failed = done(PyObject_CallObject(HAS(sent), OF_FRAME(now->frame, call)));
    }
    Py_XDECREF(here);
    Py_XDECREF(load);
    return failed ? -1 : 0;
}
