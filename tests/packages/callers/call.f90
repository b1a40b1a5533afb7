! As call.c, and errors and copies.
program call
  use iso_c_binding
  use small
  implicit none
  type(model_t), target :: model
  type(model_t) :: copy
  type(states_t), target :: states
  real(c_float), target :: x(3, 5), large(3, 10)
  integer(c_int64_t), target :: index(5)
  real(c_float), allocatable, target :: y(:, :), again(:, :)
  logical(c_bool), allocatable, target :: flags(:)
  character(200) :: weights, path
  character(300) :: message
  integer :: i, status, file

  call get_command_argument(1, weights)
  call get_command_argument(2, path)
  do i = 0, 14
    x(mod(i, 3) + 1, i / 3 + 1) = real(i, c_float) * 0.37_c_float - 2
  end do
  index = [(int(i * i, c_int64_t), i=0, 4)]
  call model%load(trim(weights), threads=2)
  call model%new_states(states, 5)
  call model%run(x, index, states, y, flags)
  call model%run(x, index, states, y, flags)
  open (newunit=file, file=trim(path), access='stream', form='unformatted', status='replace')
  write (file) y, flags, states%cache, states%steps
  close (file)

  copy = model
  states%cache = 1
  large(:, 1:10:2) = x
  call copy%run(large(:, 1:10:2), index, states, again, flags)  ! every other column: Fortran copies it
  if (any(again /= y)) error stop 'a copy of the model'
  states%cache = 1
  again = 0
  call model%run_pointers([5_c_int64_t], [c_loc(x), c_loc(index), c_loc(states%cache), c_loc(states%steps)], &
                          [c_loc(again), c_loc(flags)])
  if (any(again /= y)) error stop 'pointers'
  if (model%level() /= 'generic') error stop 'level'

  call model%run(x(1:2, :), index, states, y, flags, status, message)
  if (status /= 2 .or. scan(message, 'x') == 0) error stop 'a wrong shape'
  call model%run(x, index(1:4), states, y, flags, status, message)
  if (status /= 2) error stop 'another size'
  call model%run(x, -1 - index, states, y, flags, status, message)
  if (status /= 7 .or. message(:18) /= 'index out of range') error stop 'a negative index'
  deallocate (states%cache)
  call model%run(x, index, states, y, flags, status, message)
  if (status /= 2) error stop 'no states'
  call copy%load('/nowhere', status=status, message=message)
  if (status /= 4) error stop 'no weights'
end program
