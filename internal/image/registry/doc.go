// Package registry brings images from registries and takes images there.
//
// A pull promises that every byte is what its digest says, or is asked for again; that a blob that breaks off goes on
// where it broke; that a pull that ends for whatever reason leaves nothing; and that the same pull asked for twice at a
// time is done once. How many pulls there are at a time is the importer's to say, how many blobs of each this package's,
// and memory grows with neither the layers nor their size.
//
// Who may make this process talk to a host is decided before; what this package sees to is where it is led from there: a
// registry can send it to other hosts, but to none that is nearer to this machine than the registry itself, never to a
// link-local address, and never with our credentials (see [network]).
//
// A Remote is safe for concurrent use. Its lock is held for no request and no callback.
package registry
