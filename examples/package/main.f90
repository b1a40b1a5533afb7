! Runs the package digits from Fortran and compares its results with eager's: main WEIGHTS DATA.
! The first dimension of an array is the last one in PyTorch.
program main
  use iso_c_binding
  use digits
  implicit none
  type(model_t) :: model
  real(c_float), allocatable :: images(:, :, :, :), output(:, :), expected(:, :), off(:, :)
  real :: most
  character(1000) :: weights, folder
  integer :: file, bytes

  call get_command_argument(1, weights)
  call get_command_argument(2, folder)
  inquire (file=trim(folder)//'/in_0.bin', size=bytes)
  allocate (images(28, 28, 1, bytes / 3136), expected(10, bytes / 3136))
  open (newunit=file, file=trim(folder)//'/in_0.bin', access='stream', form='unformatted', status='old')
  read (file) images
  close (file)
  open (newunit=file, file=trim(folder)//'/expected_0.bin', access='stream', form='unformatted', status='old')
  read (file) expected
  close (file)
  open (newunit=file, file=trim(folder)//'/expected_0.tolerance', status='old')
  read (file, *) most
  close (file)

  call model%load(trim(weights))
  call model%run(images, output)
  off = abs(output - expected) / maxval(abs(expected))
  print '(3a, 2i5, 2(a, es8.1))', 'Fortran, ', trim(model%level()), ':', shape(output), ', difference from eager', &
    maxval(off), ' of', most
  if (.not. all(off <= most)) error stop 'OTHER NUMBERS'
  print '(a)', 'the same numbers'
end program
