  interface
    function c_abi_version() bind(c, name="NAME_abi_version") result(version)
      import
      integer(c_int) :: version
    end function
    function c_create(weights, options, model) bind(c, name="NAME_create") result(code)
      import
      character(kind=c_char), intent(in) :: weights(*)
      type(smelt_options), intent(in) :: options
      type(c_ptr), intent(out) :: model
      integer(c_int) :: code
    end function
    subroutine c_destroy(model) bind(c, name="NAME_destroy")
      import
      type(c_ptr), value :: model
    end subroutine
    function c_last_error() bind(c, name="NAME_last_error") result(text)
      import
      type(c_ptr) :: text
    end function
    function c_sizes(inputs, sizes) bind(c, name="NAME_sizes") result(code)
      import
      type(dl_tensor), intent(in) :: inputs(*)
      integer(c_int64_t), intent(out) :: sizes(*)
      integer(c_int) :: code
    end function
    function c_output_shape(sizes, output, extents) bind(c, name="NAME_output_shape") result(code)
      import
      integer(c_int64_t), intent(in) :: sizes(*)
      integer(c_int32_t), value :: output
      integer(c_int64_t), intent(out) :: extents(*)
      integer(c_int) :: code
    end function
    function c_initial(model, input, data) bind(c, name="NAME_initial") result(code)
      import
      type(c_ptr), value :: model, data
      integer(c_int32_t), value :: input
      integer(c_int) :: code
    end function
    function c_workspace_bytes(model, sizes) bind(c, name="NAME_workspace_bytes") result(bytes)
      import
      type(c_ptr), value :: model
      integer(c_int64_t), intent(in) :: sizes(*)
      integer(c_int64_t) :: bytes
    end function
    function c_run(model, inputs, outputs, workspace, bytes) bind(c, name="NAME_run") result(code)
      import
      type(c_ptr), value :: model, workspace
      type(dl_tensor), intent(in) :: inputs(*)
      type(dl_tensor), intent(inout) :: outputs(*)
      integer(c_size_t), value :: bytes
      integer(c_int) :: code
    end function
    function c_run_pointers(model, sizes, inputs, outputs, workspace, bytes) bind(c, name="NAME_run_pointers") &
        result(code)
      import
      type(c_ptr), value :: model, workspace
      integer(c_int64_t), intent(in) :: sizes(*)
      type(c_ptr), intent(in) :: inputs(*), outputs(*)
      integer(c_size_t), value :: bytes
      integer(c_int) :: code
    end function
    function c_level(model) bind(c, name="NAME_level") result(text)
      import
      type(c_ptr), value :: model
      type(c_ptr) :: text
    end function
    function c_strlen(text) bind(c, name="strlen") result(length)
      import
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface
