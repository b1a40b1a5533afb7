  ! Loads the model; `weights` is the path of the package's weights.safetensors. `threads`: that a run uses, 0: all
  ! processors. Without `status` an error ends the program; status is 0 or a number SMELT_E_... of smelt_model.h.
  ! `message` is cut to its length.
  subroutine load(self, weights, threads, status, message)
    class(model_t), intent(inout) :: self
    character(*), intent(in) :: weights
    integer, intent(in), optional :: threads
    integer, intent(out), optional :: status
    character(*), intent(out), optional :: message
    type(smelt_options) :: options
    integer(c_int) :: code
    if (self%owner) call c_destroy(self%handle)
    self%owner = .false.
    options%struct_bytes = c_sizeof(options)
    if (present(threads)) options%threads = int(threads, c_int32_t)
    code = 8
    if (c_abi_version() == 1) code = c_create(trim(weights) // c_null_char, options, self%handle)
    self%owner = code == 0
    if (failed(code, status, message)) return
  end subroutine

  ! A copy: it shares the loaded model, which must live longer, and has a workspace of its own.
  subroutine share(self, other)
    class(model_t), intent(inout) :: self
    class(model_t), intent(in) :: other
    type(c_ptr) :: handle
    handle = other%handle
    if (c_associated(self%handle, handle)) return
    if (self%owner) call c_destroy(self%handle)
    self%handle = handle
    self%owner = .false.
  end subroutine

  subroutine destroy(self)
    type(model_t), intent(inout) :: self
    if (self%owner) call c_destroy(self%handle)
    self%handle = c_null_ptr
    self%owner = .false.
  end subroutine

  ! The instruction set in use, as "x86-64-v4".
  function level(self) result(found)
    class(model_t), intent(in) :: self
    character(:), allocatable :: found
    found = text_of(c_level(self%handle))
  end function

  ! Runs the model on memory of the caller's in the order of the C interface; the arrays are not checked.
  subroutine run_pointers(self, sizes, inputs, outputs, status, message)
    class(model_t), intent(inout), target :: self
    integer(c_int64_t), intent(in) :: sizes(:)
    type(c_ptr), intent(in) :: inputs(:), outputs(:)
    integer, intent(out), optional :: status
    character(*), intent(out), optional :: message
    integer(c_int64_t) :: bytes
    integer(c_int) :: code
    bytes = c_workspace_bytes(self%handle, sizes)
    if (failed(merge(1_c_int, 0_c_int, bytes < 0), status, message)) return
    code = c_run_pointers(self%handle, sizes, inputs, outputs, self%reserve(bytes), int(bytes, c_size_t))
    if (failed(code, status, message)) return
  end subroutine

  ! Memory for a run, aligned to 64 bytes.
  function reserve(self, bytes) result(memory)
    class(model_t), intent(inout), target :: self
    integer(c_int64_t), intent(in) :: bytes
    type(c_ptr) :: memory
    integer(c_intptr_t) :: address
    if (allocated(self%workspace)) then
      if (size(self%workspace, kind=c_int64_t) < bytes + 64) deallocate (self%workspace)
    end if
    if (.not. allocated(self%workspace)) allocate (self%workspace(bytes + 64))
    address = transfer(c_loc(self%workspace), address)
    memory = c_loc(self%workspace(1 + modulo(-address, 64_c_intptr_t)))
  end function

  ! Fills in a tensor; `extents` are Fortran's, `dimensions` gets the model's.
  subroutine describe(tensor, data, code, bits, extents, dimensions)
    type(dl_tensor), intent(out) :: tensor
    type(c_ptr), intent(in) :: data
    integer, intent(in) :: code, bits, extents(:)
    integer(c_int64_t), intent(inout), target, contiguous :: dimensions(:)
    tensor%data = data
    tensor%ndim = size(extents)
    tensor%code = int(code, c_int8_t)
    tensor%bits = int(iand(bits, 127) - iand(bits, 128), c_int8_t)
    dimensions(:size(extents)) = extents(size(extents):1:-1)
    tensor%shape = c_loc(dimensions)
  end subroutine

  ! Whether there is an error, which goes to the caller, or ends the program where the caller does not ask for it.
  function failed(code, status, message) result(is)
    integer(c_int), intent(in) :: code
    integer, intent(out), optional :: status
    character(*), intent(out), optional :: message
    logical :: is
    character(:), allocatable :: text
    is = code /= 0
    if (present(status)) status = code
    text = ''
    if (is) text = text_of(c_last_error())
    if (code == 8 .and. len(text) == 0) text = 'library and module are of different versions'
    if (present(message)) message = text
    if (is .and. .not. present(status)) then
      text = 'NAME: ' // text
      error stop text
    end if
  end function

  function text_of(text) result(found)
    type(c_ptr), intent(in) :: text
    character(:), allocatable :: found
    character(kind=c_char), pointer :: letters(:)
    integer :: at
    call c_f_pointer(text, letters, [c_strlen(text)])
    allocate (character(size(letters)) :: found)
    do at = 1, size(letters)
      found(at:at) = letters(at)
    end do
  end function
