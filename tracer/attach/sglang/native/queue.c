/* The wrapper of a controller's method that processes a queue: it serves the requests that queued.
 *
 * It does what the Python wrappers do (RequestTracker.carrying, LayerSplitBroadcasts.loading), unless the pools
 * of this process divide their layers.
 */

#include "helper.h"

/* Add the requests of one queued operation to `found`, each once; returns 0 if it is not usual. */
static int add_requests(const Wrapper *self, PyObject *queued, PyObject *found)
{
    PyObject *nodes = PyObject_GetAttr(queued, n_node_ids);
    int usual = !nodes ? -1 : PyList_CheckExact(nodes) ? 1 : 0;
    for (Py_ssize_t i = 0; usual == 1 && i < PyList_GET_SIZE(nodes); i++) {
        PyObject *node = Py_NewRef(PyList_GET_ITEM(nodes, i));
        PyObject *known = Py_XNewRef(PyDict_GetItemWithError(self->nodes, node));
        Py_DECREF(node);
        if (!known)
            usual = PyErr_Occurred() ? -1 : 1;
        else if (!PyTuple_CheckExact(known))
            usual = 0;
        for (Py_ssize_t j = 0; known && usual == 1 && j < PyTuple_GET_SIZE(known); j++)
            usual = PyDict_SetItem(found, PyTuple_GET_ITEM(known, j), Py_None) ? -1 : 1;
        Py_XDECREF(known);
    }
    Py_XDECREF(nodes);
    return usual;
}

/* Find the requests that a controller's queue serves, as a tuple; returns 0 if it is not usual. */
static int requests_of(const Wrapper *self, PyObject *owner, PyObject **requests)
{
    PyObject *waiting = PyObject_GetAttr(owner, self->queue), *found = PyDict_New();
    int usual = !waiting || !found ? -1 : PyList_CheckExact(waiting) ? 1 : 0;
    for (Py_ssize_t i = 0; usual == 1 && i < PyList_GET_SIZE(waiting); i++) {
        PyObject *queued = Py_NewRef(PyList_GET_ITEM(waiting, i));
        usual = add_requests(self, queued, found);
        Py_DECREF(queued);
    }
    if (usual == 1) {
        PyObject *each = PyDict_Keys(found);
        *requests = each ? PyList_AsTuple(each) : NULL;
        Py_XDECREF(each);
        usual = *requests ? 1 : -1;
    }
    Py_XDECREF(waiting);
    Py_XDECREF(found);
    return usual;
}

/* Call SGLang's method with these requests as those that the thread works for. */
static PyObject *carry(const Wrapper *self, PyObject *requests, PyObject *const *args, size_t flags,
                       PyObject *names)
{
    Calls *calls = self->calls;
    PyObject *before = PyObject_GetAttr(HAS(here), n_carried), *result = NULL;
    if (before && !PyObject_SetAttr(HAS(here), n_carried, requests)) {
        result = PyObject_Vectorcall(self->original, args, flags, names);
        PyObject *error = result ? NULL : taken_error();
        if (PyObject_SetAttr(HAS(here), n_carried, before))
            PyErr_WriteUnraisable((PyObject *)self);
        if (error)
            give_error(error);
    }
    Py_XDECREF(before);
    return result;
}

PyObject *queue(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Wrapper *self = (Wrapper *)callable;
    Calls *calls = self->calls;
    PyObject *probe = PyVectorcall_NARGS(flags) ? probe_of(calls) : NULL, *requests = NULL;
    int usual = probe ? 1 : 0;
    if (usual && self->loads) { /* no pool of this process divides its layers */
        PyObject *modules = PyImport_GetModuleDict();
        int divides = PyDict_Check(modules) ? PyDict_Contains(modules, HAS(divides)) : 1;
        usual = divides < 0 ? -1 : !divides;
    }
    if (usual == 1 && PyDict_GET_SIZE(self->nodes))
        usual = requests_of(self, args[0], &requests);
    Py_XDECREF(probe);
    if (usual != 1)
        return left_to_python() ? NULL : PyObject_Vectorcall(self->python, args, flags, names);
    PyObject *result = requests && PyTuple_GET_SIZE(requests)
                           ? carry(self, requests, args, flags, names)
                           : PyObject_Vectorcall(self->original, args, flags, names);
    Py_XDECREF(requests);
    return result;
}
