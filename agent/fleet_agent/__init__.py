"""The daemon of a host: launches servers, proves their configuration, measures, keeps a journal."""
