  type, bind(c) :: dl_tensor
    type(c_ptr) :: data = c_null_ptr
    integer(c_int32_t) :: device_type = 1, device_id = 0, ndim = 0
    integer(c_int8_t) :: code = 0, bits = 0
    integer(c_int16_t) :: lanes = 1
    type(c_ptr) :: shape = c_null_ptr, strides = c_null_ptr
    integer(c_int64_t) :: byte_offset = 0
  end type

  type, bind(c) :: smelt_options
    integer(c_size_t) :: struct_bytes = 0
    integer(c_int32_t) :: threads = 0, flags = 0
    type(c_ptr) :: level = c_null_ptr, parallel = c_null_ptr, user = c_null_ptr
  end type
